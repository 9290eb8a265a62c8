"""Fills the configuration tree in: a TOML file, over it the environment, over that flags. Never interprets a setting.

Used by the command line. What is no setting is refused with the nearest name there is; a value out of its limits with
its key, the value, the limit and where it came from.
"""

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from loopwright.compose.config import Config
from loopwright.compose.settings import MASK, NO_SETTINGS, PREFIX, TEST_PREFIX, Setting, all_settings
from loopwright.core.errors import BadRequest

DEFAULT = "default"

StructT = TypeVar("StructT", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Given:
    """A value, and who says so. `is_text`: from where all values are strings."""

    value: Any
    source: str
    is_text: bool = False


Values: TypeAlias = dict[str, Given]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The tree, and where each value that is no default came from."""

    config: Config
    sources: Mapping[str, str]  # by key

    def source_of(self, key: str) -> str:
        return self.sources.get(key, DEFAULT)


def load_config(
    path: str | None,
    flags: Mapping[str, Given] | None = None,
    *,
    defaults: Config = Config(),  # noqa: B008 (frozen)
    environment: Mapping[str, str] | None = None,
) -> Loaded:
    """`flags` by key. Raises BadRequest, and OSError for a file that cannot be read."""
    given: Values = {}
    given |= _from_file(path) if path is not None else {}
    given |= _from_environment(os.environ if environment is None else environment)
    given |= flags or {}
    values = {key: _converted(all_settings()[key], one) for key, one in given.items()}
    config = _replaced(defaults, "", values, given)
    return Loaded(config, {key: one.source for key, one in given.items()})


def find_setting(key: str, source: str) -> Setting:
    """Raises BadRequest with the nearest key."""
    found = all_settings().get(key)
    if found is None:
        raise _unknown(key, source, all_settings())
    return found


def _from_file(path: str) -> Values:
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"{path} is not TOML: {error}") from None
    return {key: Given(value, path) for key, value in _leaves(tables, "", path)}


def _leaves(table: Mapping[str, Any], prefix: str, source: str) -> Iterator[tuple[str, Any]]:
    sections = {key.rpartition(".")[0] for key in all_settings()}
    for name, value in table.items():
        key = f"{prefix}{name}"
        if key not in sections:
            yield find_setting(key, source).key, value
        elif isinstance(value, dict):
            yield from _leaves(value, f"{key}.", source)
        else:
            raise BadRequest(f"{key} is {value!r}, in {source}: it is a table", field=key)


def _from_environment(environment: Mapping[str, str]) -> Values:
    keys = {setting.variable: key for key, setting in all_settings().items()}
    given: Values = {}
    for name, value in environment.items():
        if not name.startswith(PREFIX) or name in NO_SETTINGS or name.startswith(TEST_PREFIX):
            continue
        if name not in keys:
            raise _unknown(name, "the environment", [*keys, *NO_SETTINGS])
        given[keys[name]] = Given(value, name, is_text=True)
    return given


def _unknown(name: str, source: str, known: Iterable[str]) -> BadRequest:
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}?" if nearest else "loopwright config show lists the settings"
    return BadRequest(f"{name}, in {source}, is no setting", hint=hint, field=name)


def _converted(setting: Setting, given: Given) -> object:
    value = _parsed(setting, given) if given.is_text else given.value
    try:
        return msgspec.convert(value, setting.kind, strict=not given.is_text)
    except msgspec.ValidationError as error:
        raise _wrong(setting, given, str(error)) from None


def _parsed(setting: Setting, given: Given) -> object:
    """A string as the setting's type wants it: JSON for tables; JSON or words between commas for lists."""
    text = given.value
    if setting.is_table or (setting.is_list and text.lstrip().startswith("[")):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise _wrong(setting, given, f"not JSON: {error}") from None
    if setting.is_list:
        return [word.strip() for word in text.split(",") if word.strip()]
    return None if not text and setting.limits.endswith("none") else text


def _wrong(setting: Setting, given: Given, why: str) -> BadRequest:
    said, _, where = why.partition(" - at `$")
    key = f"{setting.key}{where.strip('`')}".replace("[...]", "")
    shown = MASK if setting.is_secret or setting.is_table else repr(given.value)
    hint = ""
    if said.startswith("Object contains unknown field"):
        name = said.split("`")[1]
        fields = difflib.get_close_matches(name, _fields_of(setting), n=1, cutoff=0.5)
        hint = f"did you mean {fields[0]}?" if fields else ""
    return BadRequest(f"{key} is {shown}, from {given.source}: {said[0].lower()}{said[1:]}", hint=hint, field=key)


def _fields_of(setting: Setting) -> list[str]:
    """Of the tables in a table."""
    kind = msgspec.inspect.type_info(setting.kind)
    kind = kind.type if isinstance(kind, msgspec.inspect.Metadata) else kind
    if isinstance(kind, msgspec.inspect.DictType) and isinstance(kind.value_type, msgspec.inspect.StructType):
        return [field.name for field in kind.value_type.fields]
    return []


def _replaced(section: StructT, prefix: str, values: Mapping[str, object], given: Values) -> StructT:
    """The section with the values that were given, and everything below it."""
    changed: dict[str, Any] = {}
    for name in section.__struct_fields__:
        value, key = getattr(section, name), f"{prefix}{name}"
        if isinstance(value, msgspec.Struct):
            changed[name] = _replaced(value, f"{key}.", values, given)
        elif key in values:
            changed[name] = values[key]
    try:
        return msgspec.structs.replace(section, **changed)
    except ValueError as error:  # two that do not go together
        sources = {given[key].source for key in given if key.startswith(prefix)}
        raise BadRequest(f"{prefix.strip('.')}, from {', '.join(sorted(sources))}: {error}") from None
