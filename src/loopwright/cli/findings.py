"""Shows what is wrong with a program, a line each. Never looks for it. Used by check, dev and deploy."""

from loopwright.core.errors import ProgramRejected
from loopwright.runtime.program_check import Finding, check_program


def refuse_broken(source: str, filename: str, modules: frozenset[str] | None) -> list[Finding]:
    """What is wrong with a program that can be read, of imports only if the sandbox's `modules` are known. Raises
    ProgramRejected for one that cannot even be compiled, which a server would take, and no run of it would start."""
    findings = check_program(source, filename, modules)
    for one in findings:
        if one.code == "syntax":
            raise ProgramRejected(f"{filename}, line {one.line}: {one.message}", hint=one.hint)
    return findings


def line_of(path: str, finding: Finding) -> str:
    """FILE:LINE:COLUMN, where editors and terminals follow it, and what is wrong."""
    hint = f" ({finding.hint})" if finding.hint else ""
    return f"{path}:{finding.line}:{finding.column}: {finding.code}: {finding.message}{hint}"
