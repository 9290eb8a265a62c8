"""Finds what the sandbox cannot do although its modules are there: processes, threads, sockets, a keyboard.

Never executes anything, and says only what is certain. Part of `program_check`.
"""

import ast
from collections.abc import Iterator

from loopwright.runtime.program_names import Names, Said

_PROCESS = ("the sandbox has no processes", "what a program may do outside is http and tools")
_THREAD = ("the sandbox has no threads", "write async functions, and asyncio.gather or a TaskGroup")
_SOCKET = ("the sandbox has no sockets", "write await http.get(…) of loopwright, for hosts that its permissions list")

_IMPOSSIBLE = {
    **dict.fromkeys(("subprocess.run", "subprocess.Popen", "subprocess.call", "subprocess.check_call"), _PROCESS),
    **dict.fromkeys(("subprocess.check_output", "os.system", "os.popen", "os.fork", "os.execv", "os.kill"), _PROCESS),
    **dict.fromkeys(("multiprocessing.Process", "multiprocessing.Pool"), _PROCESS),
    **dict.fromkeys(("asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"), _PROCESS),
    **dict.fromkeys(("concurrent.futures.ProcessPoolExecutor",), _PROCESS),
    **dict.fromkeys(("concurrent.futures.ThreadPoolExecutor", "threading.Timer", "asyncio.to_thread"), _THREAD),
    **dict.fromkeys(("socket.socket", "socket.create_connection", "socket.getaddrinfo"), _SOCKET),
    **dict.fromkeys(("urllib.request.urlopen", "urllib.request.urlretrieve"), _SOCKET),
    **dict.fromkeys(("http.client.HTTPConnection", "http.client.HTTPSConnection"), _SOCKET),
    **dict.fromkeys(("asyncio.open_connection", "asyncio.start_server"), _SOCKET),
    "asyncio.run": ("main runs in a loop already", "write await before what is to run"),
}
_BUILTINS = {
    "input": ("the sandbox has no keyboard", "write await receive(): a line where a person types"),
    "breakpoint": ("the sandbox has no debugger", "run it with --native to stop there"),
}


def check_possible(tree: ast.Module, names: Names) -> Iterator[Said]:
    excused = {id(node) for block in ast.walk(tree) if isinstance(block, ast.Try) for node in ast.walk(block)}
    imported = _imported(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or id(node) in excused:
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id in _BUILTINS and not names.binds(function):
            found = _BUILTINS[function.id]
        else:
            found = _IMPOSSIBLE.get(_dotted(function, imported))  # type: ignore[assignment]
        if found is not None:
            yield node, f"{ast.unparse(function)}: {found[0]}", found[1]


def _imported(tree: ast.Module) -> dict[str, str]:
    """What names of imports stand for, where nothing else binds them."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                root = one.name.partition(".")[0]
                found[one.asname or root] = one.name if one.asname else root
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    bound = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    return {name: path for name, path in found.items() if name not in bound}


def _dotted(node: ast.expr, imported: dict[str, str]) -> str:
    """The path of a function of a module, or ""."""
    match node:
        case ast.Name(id=name):
            return imported.get(name, "")
        case ast.Attribute(value=value, attr=name) if owner := _dotted(value, imported):
            return f"{owner}.{name}"
    return ""
