"""Writes docs/sdk.md and docs/metadata.md: what a program imports, and what its metadata may say.

Run by `make reference`; a test compares the files with what this would write.
"""

import inspect
import re
import types
import typing
from collections.abc import Iterator

from calls_reference import _comments, _escaped, _fields
from repository import ROOT

from loopwright import sdk
from loopwright.compose.config import RuntimeConfig
from loopwright.runtime.limits import Limits
from loopwright.runtime.permissions import Permissions
from loopwright.sdk import options
from loopwright.sdk.argument_check import behind

SDK_REFERENCE = ROOT / "docs" / "sdk.md"
METADATA_REFERENCE = ROOT / "docs" / "metadata.md"
NOTE = "<!-- Written by `make reference` from the source; do not edit. -->"

SDK_INTRODUCTION = f"""# What a program imports

{NOTE}

`from loopwright import …` gives the names below and no others, beside the standard library. The same
names work in the sandbox and with `--native`. [context.md](context.md) says what each method of a context costs.

"""

METADATA_INTRODUCTION = f"""# A program's metadata

{NOTE}

A comment block in the program's file, in the form of PEP 723; its content is TOML. Without one, every default holds and
nothing is permitted. An unknown name is refused when the program is read.

```python
# /// program
# permissions = {{ http = ["api.example.org", "127.0.0.1:*"] }}
# limits = {{ memory_mb = 128, seconds = 120 }}
# ///
```

"""


def sdk_reference() -> str:
    """What stands in docs/sdk.md."""
    names = {name: getattr(sdk, name) for name in sdk.__all__}
    classes = {name: one for name, one in names.items() if inspect.isclass(one) and not issubclass(one, Exception)}
    errors = {name: one for name, one in names.items() if inspect.isclass(one) and issubclass(one, Exception)}
    functions = {name: one for name, one in names.items() if inspect.isfunction(one)}
    modules = {name: one for name, one in names.items() if inspect.ismodule(one) and name != "errors"}
    return "".join(
        [
            SDK_INTRODUCTION,
            "## Functions\n\n",
            *(_function(name, one) for name, one in functions.items()),
            "## Classes\n\n",
            *(_class(name, one) for name, one in classes.items()),
            *(_module(name, one) for name, one in modules.items()),
            "## Options\n\n",
            *(_options(one) for one in _option_tables()),
            "## Errors\n\nA program can catch these; `loopwright.errors` has them and those they extend.\n\n",
            "| error | code | |\n|---|---|---|\n",
            *(_error(name, one) for name, one in errors.items()),
        ]
    )


def metadata_reference() -> str:
    """What stands in docs/metadata.md."""
    caps = RuntimeConfig().caps
    lines = [
        METADATA_INTRODUCTION,
        "## limits\n\nThe server's cap bounds what a program asks for.\n\n",
        "| name | type | default | cap | meaning |\n|---|---|---|---|---|\n",
    ]
    for name, kind, default, meaning in _fields(Limits):
        lines.append(f"| `{name}` | {kind} | {default} | `{getattr(caps, name)}` | {meaning} |\n")
    lines += [
        f"\n## permissions\n\n{_paragraphs(inspect.getmodule(Permissions))}\n\n",
        "| name | type | default | meaning |\n|---|---|---|---|\n",
        *(f"| `{name}` | {kind} | {default} | {meaning} |\n" for name, kind, default, meaning in _fields(Permissions)),
    ]
    return "".join(lines)


def undescribed() -> list[str]:
    """Fields of the metadata without a comment that says what they mean."""
    return [name for kind in (Limits, Permissions) for name in kind.__struct_fields__ if name not in _comments(kind)]


def _function(name: str, function: types.FunctionType, level: str = "###") -> str:
    word = (
        "async "
        if inspect.iscoroutinefunction(behind(function)) or inspect.isasyncgenfunction(behind(function))
        else ""
    )
    return f"{level} `{name}`\n\n```python\n{word}{name}{_signature(function)}\n```\n\n{_text(function)}"


def _class(name: str, kind: type) -> str:
    parts = [f"### `{name}`\n\n"]
    if _takes_something(kind):
        parts.append(f"```python\n{name}{_signature(kind)}\n```\n\n")
    parts.append(_text(kind))
    for method, one in vars(kind).items():
        if method.startswith("_"):
            continue
        if isinstance(one, property):
            kind_of = inspect.signature(typing.cast("types.FunctionType", one.fget)).return_annotation
            parts.append(f"#### `{name}.{method}`: `{inspect.formatannotation(kind_of)}`\n\n{_text(one)}")
        elif isinstance(one, types.FunctionType):
            parts.append(_function(method, one, level="####").replace(f"#### `{method}`", f"#### `{name}.{method}`"))
    return "".join(parts)


def _module(name: str, module: types.ModuleType) -> str:
    own = {key: one for key, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__}
    functions = {
        key: one for key, one in own.items() if isinstance(one, types.FunctionType) and not key.startswith("_")
    }
    head = f"## Module `{name}`\n\n{_text(module)}"
    return head + "".join(
        _function(key, one).replace(f"### `{key}`", f"### `{name}.{key}`") for key, one in functions.items()
    )


def _option_tables() -> Iterator[type]:
    for one in vars(options).values():
        if typing.is_typeddict(one):
            yield one


def _options(kind: type) -> str:
    bases = [one.__name__ for one in getattr(kind, "__orig_bases__", ()) if typing.is_typeddict(one)]
    also = f" All of `{bases[0]}` too." if bases else ""
    rows = [
        f"| `{name}` | `{_escaped(inspect.formatannotation(hint).replace('collections.abc.', ''))}` |\n"
        for name, hint in vars(kind)["__annotations__"].items()
        if not bases or name not in typing.get_type_hints(getattr(options, bases[0]))
    ]
    return f"### `{kind.__name__}`\n\n{_paragraphs(kind)}{also}\n\n| option | type |\n|---|---|\n{''.join(rows)}\n"


def _error(name: str, kind: type) -> str:
    own = "" if kind.__doc__ is None or "__doc__" not in vars(kind) else _paragraphs(kind).replace("\n", " ")
    return f"| `{name}` | `{kind.code}` | {own} |\n"  # type: ignore[attr-defined]


def _takes_something(kind: type) -> bool:
    return "__init__" in vars(kind) and not kind.__name__.startswith("Approximate")


def _signature(thing: object) -> str:
    found = inspect.signature(thing)  # type: ignore[arg-type]
    parameters = [one for name, one in found.parameters.items() if name != "self"]
    text = str(found.replace(parameters=parameters))
    return re.sub(r"(?:\w+\.)+(?=[A-Z])", "", text).replace("''", '""').replace("'", "")


def _text(thing: object) -> str:
    said = _paragraphs(thing)
    return f"{said}\n\n" if said else ""


def _paragraphs(thing: object) -> str:
    return _without_markup(inspect.cleandoc(getattr(thing, "__doc__", None) or ""))


def _without_markup(text: str) -> str:
    """A docstring as paragraphs; what is code, indented or between backticks, stays as it is."""
    blocks = text.split("\n\n")
    return "\n\n".join(one if one.startswith("    ") else _outside_code(one) for one in blocks)


def _outside_code(block: str) -> str:
    pieces = block.split("`")
    return "`".join(one if place % 2 else _escaped(one) for place, one in enumerate(pieces))


if __name__ == "__main__":
    SDK_REFERENCE.write_text(sdk_reference(), encoding="utf-8")
    METADATA_REFERENCE.write_text(metadata_reference(), encoding="utf-8")
