"""Compiles and runs a chat template in Jinja's immutable sandbox. Never encodes text and never knows roles.

Called by ChatTemplate. Owns the bounds of a rendering, and the secret that signs the control tokens which the template
itself writes: it is put after their first character in every string of the template, so that a control token of the
result carries it exactly when the template made it, also out of parts such as '<|' + role + '|>'.

The bounds stop a template that loops, recurses or writes without end. They are no defence against one that is made to
take memory: a template is code that came with the weights.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NoReturn

from jinja2 import TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from loopwright.core.clock import Clock
from loopwright.core.errors import BadRequest
from loopwright.text.literals import one_of

MAX_STEPS = 200_000
"""Turns of loops and calls of macros in one rendering."""

MAX_RENDERED_CHARACTERS = 16 << 20

MAX_REPEATS = 1000
"""What a string may be multiplied with."""

_COUNT_STEP = "loopwright_count_step"

_OWN_NAMES = {"messages", "add_generation_prompt", "tools", "documents", "bos_token", "eos_token"}
"""What a template gets of us, and no caller may set."""


class TemplateSandbox:
    """One compiled template. Raises BadRequest when it cannot be compiled.

    `controls`: how each control token is written → its id. `variables`: strings that the template may use, which are
    the template's own. `options` are the names of those that a caller may set beside them."""

    def __init__(self, source: str, controls: Mapping[str, int], variables: Mapping[str, str], clock: Clock) -> None:
        self.secret = (
            f"\ue000{secrets.token_hex(8)}\ue001"  # private-use ends, so that it cannot merge with a neighbour
        )
        signer = _Signer(controls, self.secret)
        self._controls = {signer.sign(text): control_id for text, control_id in controls.items() if text}
        self._signed_pattern = one_of(self._controls)
        self._variables = {name: signer.sign(text) for name, text in variables.items()}
        environment = _environment(clock)
        try:
            wanted = meta.find_undeclared_variables(environment.parse(source))
            self.takes_tools = "tools" in wanted
            self.options = tuple(sorted(wanted - environment.globals.keys() - _OWN_NAMES))
            self.takes_calls = "tool_calls" in source
            tree = _Instrumented(signer).visit(environment.parse(source))
            self._template = environment.from_string(tree)
        except (TemplateError, RecursionError) as error:
            raise BadRequest(f"the model's chat template is broken: {_one_line(error)}", field="model") from error

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, object]] = (),
        options: Mapping[str, object] = {},
    ) -> str:
        """The rendered text, control tokens signed. Raises BadRequest, with the template's words if it refuses."""
        parts: list[str] = []
        num_characters = 0
        try:
            own = {"messages": messages, "add_generation_prompt": add_generation_prompt, "tools": list(tools) or None}
            own |= {"documents": None, **self._variables, _COUNT_STEP: _step_counter()}
            for part in self._template.generate({**options, **own}):
                parts.append(part)
                num_characters += len(part)
                if num_characters > MAX_RENDERED_CHARACTERS:
                    raise SecurityError(f"it wrote more than {MAX_RENDERED_CHARACTERS} characters")
        except Exception as error:  # a template is foreign code and can raise anything
            reason = _one_line(error).replace(self.secret, "")
            raise BadRequest(f"the model's chat template refused the messages: {reason}", field="messages") from error
        return "".join(parts)

    def pieces(self, rendered: str) -> Iterator[tuple[str, int | None]]:
        """Cuts a rendered text, or an end of one, into plain text (with None) and control tokens (with their ids)."""
        for piece in self._signed_pattern.split(rendered):
            yield piece.replace(self.secret, ""), self._controls.get(piece)


class _Signer:
    """Signs the control tokens in a string of the template, also one that the string's end begins."""

    def __init__(self, controls: Mapping[str, int], secret: str) -> None:
        self._secret = secret
        self._controls = one_of(controls)
        # One character begins too much that is no control token.
        self._beginnings = {text[:size] for text in controls for size in range(2, len(text))}
        self._max_size = max(map(len, self._beginnings), default=0)

    def sign(self, text: str) -> str:
        *parts, end = self._controls.split(text)
        signed = [self._mark(part) if place % 2 else part for place, part in enumerate(parts)]
        for size in range(min(self._max_size, len(end)), 1, -1):
            if end[-size:] in self._beginnings:
                return "".join([*signed, end[:-size], self._mark(end[-size:])])
        return "".join([*signed, end])

    def _mark(self, text: str) -> str:
        return text[0] + self._secret + text[1:]


class _Instrumented(NodeTransformer):
    """Rewrites a template's tree: its strings are signed, and every loop and macro counts its turns."""

    def __init__(self, signer: _Signer) -> None:
        self._signer = signer

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return nodes.TemplateData(self._signer.sign(node.data), lineno=node.lineno)

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        return nodes.Const(self._signer.sign(node.value), lineno=node.lineno) if isinstance(node.value, str) else node

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._counted(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._counted(node)

    def _counted(self, node: nodes.For | nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        count = nodes.Call(nodes.Name(_COUNT_STEP, "load"), [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(count).set_lineno(node.lineno))
        return node


class _Generation(Extension):
    """`{% generation %}` … `{% endgeneration %}` marks what a model learns to write; for us it is only its content."""

    tags = {"generation"}  # noqa: RUF012 (the type that Jinja gives it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: object, operator: str, left: object, right: object) -> object:
        del context
        if operator == "*" and isinstance(left, int | float) and isinstance(right, int | float):
            return left * right
        if operator == "*" and isinstance(left, str) and isinstance(right, int) and right <= MAX_REPEATS:
            return left * right
        raise SecurityError(f"{type(left).__name__} {operator} {type(right).__name__} is not allowed")


def _environment(clock: Clock) -> ImmutableSandboxedEnvironment:
    # The options and names that templates are written for: huggingface.co/docs/transformers/chat_templating_writing
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
    environment.globals = {
        "range": environment.globals["range"],
        "dict": dict,
        "namespace": Namespace,
        "raise_exception": _raise_exception,
        "strftime_now": lambda format: datetime.fromtimestamp(clock.wall_s()).strftime(format),
    }
    environment.filters["tojson"] = _to_json
    return environment


def _step_counter() -> Callable[[], None]:
    steps = iter(range(MAX_STEPS))

    def count_step() -> None:
        if next(steps, None) is None:
            raise SecurityError(f"it took more than {MAX_STEPS} steps")

    return count_step


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _one_line(error: BaseException) -> str:
    return re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
