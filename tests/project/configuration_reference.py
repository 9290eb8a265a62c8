"""Writes docs/configuration.md: every setting of the configuration tree.

Run by `make reference`; a test compares the file with what this would write.
"""

from pathlib import Path
from typing import Any

from calls_reference import _escaped
from repository import ROOT

from loopwright.compose.config import server_defaults
from loopwright.compose.settings import NO_SETTINGS, Setting, all_settings

REFERENCE = ROOT / "docs" / "configuration.md"
STATE = Path("~/.local/state/loopwright")

INTRODUCTION = """# Configuration

<!-- Written by `make reference` from the source; do not edit. -->

A server has one configuration. What is not said has a default; a TOML file counts over that, the environment over the
file, flags over both. It is read once, at the start. Something that is no setting is refused, in the file, in the
environment and in `--set`, with the nearest name that there is; a value out of its limits with the setting, the value,
the limit and where it came from.

```sh
loopwright serve --config server.toml --port 9000 --set control.max_batch_rows=64
LOOPWRIGHT_ENGINE_NUM_BLOCKS=4096 loopwright serve
loopwright config show                     # each setting: its value, where it came from, what it means
loopwright config show server --port 9000  # only some; with the flags that serve would have
```

```toml
# server.toml
model = "default"

[server]
port = 9000

[runtime.caps]
seconds = 600
```

A key is its path with dots. Its variable is the key in capitals, with `LOOPWRIGHT_` before it and `_` for dots; there
and in `--set`, a list is words between commas or JSON, and a table is JSON. Some settings have a flag of their own.
`loopwright run` and `dev` go by the file and the environment too, `demo` by the environment, always in one process.
What is secret, keys and the `headers` and `env` of tools, is shown as `***`, and is best written as `${NAME}`, a
variable of the environment.

"""


def configuration_reference() -> str:
    """What stands in docs/configuration.md."""
    parts = [INTRODUCTION]
    section = None
    for setting in all_settings().values():
        if (own := setting.key.rpartition(".")[0]) != section:
            section = own
            parts.append(
                f"{'' if section == '' else chr(10)}## {f'[{section}]' if section else 'Outside of tables'}\n\n"
            )
            parts.append("| setting | type and limits | default | flag | meaning |\n|---|---|---|---|---|\n")
        parts.append(_row(setting))
    parts.append("\n## Other variables\n\n| variable | meaning |\n|---|---|\n")
    parts += [f"| `{name}` | {meaning} |\n" for name, meaning in NO_SETTINGS.items()]
    return "".join(parts)


def _row(setting: Setting) -> str:
    default = _text(setting.shown_in(server_defaults(STATE)))
    flag = f"`{setting.flag}`" if setting.flag else ""
    name = setting.key.rpartition(".")[2]
    return f"| `{name}` | {setting.limits} | `{default}` | {flag} | {_escaped(setting.meaning)} |\n"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "none" if value is None else str(value)


if __name__ == "__main__":
    REFERENCE.write_text(configuration_reference(), encoding="utf-8")
