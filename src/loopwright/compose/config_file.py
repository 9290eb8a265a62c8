"""Reads a configuration from a TOML file. Never fills in what the command line says. Used by the command line.

Its tables are those of `Config`; an unknown key is refused.
"""

import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from loopwright.compose.config import Config
from loopwright.core.errors import BadRequest

Section = TypeVar("Section", bound=msgspec.Struct)


def read_config(path: str | None) -> Config:
    """The defaults without a path. Raises BadRequest naming the file and what is wrong with it."""
    if path is None:
        return Config()
    try:
        return msgspec.convert(tomllib.loads(Path(path).read_text(encoding="utf-8")), Config)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{path}: {error}", field=str(error).rpartition("`$")[2].strip("`.")) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"{path} is not TOML: {error}") from None


def with_given(section: Section, **flags: Any) -> Section:  # noqa: ANN401 (of the section's types)
    """The section with those flags that were given: None is one that was not."""
    return msgspec.structs.replace(section, **{name: value for name, value in flags.items() if value is not None})
