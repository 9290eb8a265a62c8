"""The settings of the configuration tree, one by one: key, meaning, limits, variable and flag. Never reads a value's
source. Asked by `config_sources`, by the command line for its flags, and by the reference in docs/configuration.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, inspect

from loopwright.compose.config import Config

PREFIX = "LOOPWRIGHT_"
MASK = "***"

NO_SETTINGS = {
    "LOOPWRIGHT_CACHE_DIR": "the folder of models and of the prepared sandbox, instead of `~/.cache/loopwright`",
    "LOOPWRIGHT_STATE_DIR": "the folder in which `loopwright serve` keeps deployed programs and named stores, instead "
    "of `$XDG_STATE_HOME/loopwright` or `~/.local/state/loopwright`",
    "LOOPWRIGHT_URL": "the server that `deploy`, `undeploy`, `ps`, `logs`, `send` and `cancel` talk to, instead of "
    "`http://127.0.0.1:8000`",
    "LOOPWRIGHT_API_KEY": "the key that they send, to a server that has `server.keys`",
    "LOOPWRIGHT_PROCESSOR": "the best instruction set that the processor is taken to have: `avx512_bf16`, `avx512`, "
    "`avx2` or `none`; to try what a lesser machine does",
}
"""Variables beside those of settings, and what they are for. Also free: LOOPWRIGHT_TEST_…, the project's own tests'."""
TEST_PREFIX = "LOOPWRIGHT_TEST_"


@dataclass(frozen=True, slots=True)
class Setting:
    """One leaf of the tree."""

    key: str  # its path, with dots
    kind: Any  # its type, with limits
    meaning: str
    flag: str | None  # of `loopwright serve`, beside `--set`
    is_secret: bool

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return PREFIX + self.key.upper().replace(".", "_")

    @property
    def limits(self) -> str:
        """Its type and limits, in words."""
        return _words(inspect.type_info(self.kind))

    @property
    def is_table(self) -> bool:
        """Whether its value is a table by names that the configuration chooses."""
        return _origin(self.kind) is dict

    @property
    def is_list(self) -> bool:
        return _origin(self.kind) is tuple

    def value_in(self, config: Config) -> object:
        value: object = config
        for name in self.key.split("."):
            value = getattr(value, name)
        return value

    def shown_in(self, config: Config) -> Any:  # noqa: ANN401 (JSON)
        """The value as JSON has it, its secrets masked."""
        return masked(self.value_in(config), self.is_secret)


@cache
def all_settings() -> dict[str, Setting]:
    """By key, in the order of the tree."""
    return {one.key: one for one in _settings(Config, "", "")}


def masked(value: object, is_secret: bool = False) -> Any:  # noqa: ANN401 (JSON)
    """As JSON has it, but each string that is secret is `***`."""
    if isinstance(value, msgspec.Struct):
        hints = get_type_hints(type(value), include_extras=True)
        names = value.__struct_fields__
        return {name: masked(getattr(value, name), is_secret or _is_secret(hints[name])) for name in names}
    if isinstance(value, dict):
        return {str(name): masked(one, is_secret) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [masked(one, is_secret) for one in value]
    if is_secret and isinstance(value, str) and value:
        return MASK
    return value


def _settings(struct: type[msgspec.Struct], prefix: str, meaning: str) -> Iterator[Setting]:
    hints = get_type_hints(struct, include_extras=True)
    for name in struct.__struct_fields__:
        kind, key = hints[name], f"{prefix}{name}"
        said = _description(kind) or (f"{meaning} `{name}`" if meaning else "")
        bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        if isinstance(bare, type) and issubclass(bare, msgspec.Struct):
            yield from _settings(bare, f"{key}.", _description(kind))
        else:
            yield Setting(key, kind, said, _extra(kind).get("flag"), _is_secret(kind))


def _metas(kind: object) -> list[Meta]:
    return [one for one in get_args(kind)[1:] if isinstance(one, Meta)] if get_origin(kind) is Annotated else []


def _description(kind: object) -> str:
    return next((one.description for one in _metas(kind) if one.description), "")


def _extra(kind: object) -> dict[str, Any]:
    return next((one.extra for one in _metas(kind) if one.extra), {})


def _is_secret(kind: object) -> bool:
    return bool(_extra(kind).get("secret"))


def _origin(kind: object) -> object:
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(bare) in (Union, UnionType):
        bare = next(one for one in get_args(bare) if one is not NoneType)
    return get_origin(bare) or bare


def _words(kind: inspect.Type) -> str:
    match kind:
        case inspect.Metadata():
            return _words(kind.type)
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType() | inspect.FloatType():
            word = "integer" if isinstance(kind, inspect.IntType) else "number"
            signs = {"≥": kind.ge, ">": kind.gt, "≤": kind.le, "<": kind.lt}
            limits = ", ".join(f"{sign} {limit}" for sign, limit in signs.items() if limit is not None)
            return f"{word} {limits}".rstrip()
        case inspect.StrType():
            return "string"
        case inspect.NoneType():
            return "none"
        case inspect.LiteralType():
            return ", ".join(map(str, kind.values))
        case inspect.UnionType():
            return " or ".join(map(_words, kind.types))
        case inspect.VarTupleType():
            return f"list of {_words(kind.item_type)}"
        case inspect.DictType():
            return "table"
        case _:
            raise AssertionError(f"say how {kind} is to be written")
