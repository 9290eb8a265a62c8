"""Finds what the sandbox cannot do although its modules are there: processes, threads, sockets, a keyboard, your files.

Never executes anything, and says only what is certain. Part of `program_check`.
"""

import ast
from collections.abc import Iterator

from loopwright.runtime.import_paths import dotted, imported_paths
from loopwright.runtime.program_names import Names, Said, own_nodes

_PROCESS = ("the sandbox has no processes", "what a program may do outside is http and tools")
_THREAD = ("the sandbox has no threads", "write async functions, and asyncio.gather or a TaskGroup")
_SOCKET = ("the sandbox has no sockets", "write await http.get(…) of loopwright, for hosts that its permissions list")
_SIGNAL = ("the sandbox has no signals", "a run that is cancelled has asyncio.CancelledError where it waits")
_LOOP = ("main runs in a loop already", "write await before what is to run")
_FLAGS = ("a program has no command line", "the parameters of main are its flags")
_ENVIRONMENT = ("the sandbox has no environment", "make it a parameter of main")
_FILE = (
    "the sandbox has none of this machine's files",
    "give the text to a parameter of main; files of its own take limits = { max_file_bytes = 1_000_000 }",
)

_IMPOSSIBLE = {
    **dict.fromkeys(("subprocess.run", "subprocess.Popen", "subprocess.call", "subprocess.check_call"), _PROCESS),
    **dict.fromkeys(("subprocess.check_output", "os.system", "os.popen", "os.fork", "os.execv", "os.kill"), _PROCESS),
    **dict.fromkeys(("multiprocessing.Process", "multiprocessing.Pool"), _PROCESS),
    **dict.fromkeys(("asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"), _PROCESS),
    **dict.fromkeys(("concurrent.futures.ProcessPoolExecutor",), _PROCESS),
    **dict.fromkeys(("concurrent.futures.ThreadPoolExecutor", "threading.Timer", "asyncio.to_thread"), _THREAD),
    **dict.fromkeys(("threading.Thread", "multiprocessing.pool.ThreadPool"), _THREAD),
    **dict.fromkeys(("socket.socket", "socket.create_connection", "socket.getaddrinfo"), _SOCKET),
    **dict.fromkeys(("urllib.request.urlopen", "urllib.request.urlretrieve"), _SOCKET),
    **dict.fromkeys(("http.client.HTTPConnection", "http.client.HTTPSConnection"), _SOCKET),
    **dict.fromkeys(("asyncio.open_connection", "asyncio.start_server"), _SOCKET),
    **dict.fromkeys(("signal.signal", "signal.alarm"), _SIGNAL),
    "asyncio.run": _LOOP,
    "argparse.ArgumentParser": _FLAGS,
}
_OF_A_LOOP = {
    **dict.fromkeys(("run_until_complete", "run_forever"), _LOOP),
    "run_in_executor": _THREAD,
    **dict.fromkeys(("add_signal_handler", "remove_signal_handler"), _SIGNAL),
    **dict.fromkeys(("create_connection", "create_server", "add_reader", "add_writer"), _SOCKET),
    **dict.fromkeys(("subprocess_exec", "subprocess_shell"), _PROCESS),
}
"""Methods of an event loop."""
_LOOPS = ("asyncio.get_event_loop", "asyncio.get_running_loop", "asyncio.new_event_loop")
_BUILTINS = {
    "input": ("the sandbox has no keyboard", "write await receive(): a line where a person types"),
    "breakpoint": ("the sandbox has no debugger", "run it with --native to stop there"),
}
_READ = {"os.environ": _ENVIRONMENT, "sys.argv": _FLAGS}
"""What has no parts in the sandbox."""
_OF_A_PATH = frozenset({"read_text", "read_bytes", "write_text", "write_bytes", "open", "iterdir", "mkdir"})


def check_possible(tree: ast.Module, names: Names) -> Iterator[Said]:
    excused = _excused(tree)
    imported = imported_paths(tree)
    loops = _event_loops(tree, imported)
    for node in ast.walk(tree):
        if id(node) in excused:
            continue
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id in _BUILTINS and not names.binds(function):
                yield node, f"{function.id}: {_BUILTINS[function.id][0]}", _BUILTINS[function.id][1]
            elif (found := _impossible(node, imported, loops)) is not None:
                yield node, f"{ast.unparse(function)}: {found[0]}", found[1]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and not _is_first_word(node):
            path = dotted(node.value, imported)
            if path in _READ and not _is_written(tree, node.value):
                yield node, f"{ast.unparse(node)}: {_READ[path][0]}", _READ[path][1]
        elif isinstance(node, ast.AsyncFunctionDef):
            yield from _blocking(node, imported)


def check_files(tree: ast.Module, names: Names) -> Iterator[Said]:
    """Of a program whose metadata asks for no files of its own."""
    excused, imported = _excused(tree), imported_paths(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or id(node) in excused:
            continue
        match node.func:
            case ast.Name(id="open") as function if not names.binds(function):
                yield node, f"open: {_FILE[0]}", _FILE[1]
            case ast.Attribute(value=ast.Call(func=made), attr=name) if name in _OF_A_PATH:
                if dotted(made, imported) == "pathlib.Path":
                    yield node, f"{name}: {_FILE[0]}", _FILE[1]


def _excused(tree: ast.Module) -> set[int]:
    """Nodes that may fail, or that never run: those of a `try`, and what is for running the file as a script."""
    blocks = [one for one in ast.walk(tree) if isinstance(one, ast.Try) or _is_of_script(one)]
    return {id(node) for block in blocks for node in ast.walk(block)}


def _is_of_script(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("__name__ == '__main__'", "'__main__' == __name__")


def _impossible(node: ast.Call, imported: dict[str, str], loops: set[str]) -> tuple[str, str] | None:
    path = dotted(node.func, imported)
    if path in ("os.getenv", "os.environ.get") and len(node.args) == 1 and not node.keywords:
        return _ENVIRONMENT  # and it would be None, which nobody asks for
    if isinstance(node.func, ast.Attribute) and node.func.attr in _OF_A_LOOP:
        owner = node.func.value
        made = isinstance(owner, ast.Call) and dotted(owner.func, imported) in _LOOPS
        if made or (isinstance(owner, ast.Name) and owner.id in loops):
            return _OF_A_LOOP[node.func.attr]
    return _IMPOSSIBLE.get(path)


def _event_loops(tree: ast.Module, imported: dict[str, str]) -> set[str]:
    """Names that only ever stand for an event loop."""
    given: dict[str, list[bool]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            is_loop = isinstance(node.value, ast.Call) and dotted(node.value.func, imported) in _LOOPS
            given.setdefault(node.targets[0].id, []).append(is_loop)
    return {name for name, are_loops in given.items() if all(are_loops)}


def _is_first_word(node: ast.Subscript) -> bool:
    """Whether it is the name of the program itself, or a part of the list."""
    return not isinstance(node.slice, ast.Constant) or node.slice.value == 0


def _is_written(tree: ast.Module, owner: ast.expr) -> bool:
    """Whether the program itself puts something there."""
    stores = [one for one in ast.walk(tree) if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store)]
    return any(ast.unparse(one.value) == ast.unparse(owner) for one in stores)


def _blocking(function: ast.AsyncFunctionDef, imported: dict[str, str]) -> Iterator[Said]:
    for node in own_nodes(function):
        if isinstance(node, ast.Call) and dotted(node.func, imported) == "time.sleep":
            word = ast.unparse(node.func)
            yield node, f"{word} holds up the whole program, its other tasks too", "write await asyncio.sleep(…)"
