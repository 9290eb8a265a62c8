"""`loopwright config show`: each setting, its value, where that came from, and what it means. Never changes one."""

import argparse
import json
import sys

from loopwright.cli.setting_flags import add_setting_flags, load_with_flags
from loopwright.cli.tables import print_table
from loopwright.compose.config_sources import Loaded
from loopwright.compose.settings import all_settings
from loopwright.core.errors import NotFound

SHOW_HELP = "show: what `loopwright serve` with the same file, environment and flags would go by"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["show"], help=SHOW_HELP)
    parser.add_argument("prefix", nargs="?", default="", help="only settings that begin so, for instance runtime.caps")
    parser.add_argument("--json", action="store_true", help="as one object by key, for a program to read")
    add_setting_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    loaded = load_with_flags(arguments)
    shown = [one for one in all_settings().values() if one.key.startswith(arguments.prefix)]
    if not shown:
        raise NotFound(f"no setting begins with {arguments.prefix!r}", field="prefix")
    if arguments.json:
        sys.stdout.write(json.dumps(as_json(loaded, arguments.prefix), indent=2, ensure_ascii=False) + "\n")
        return 0
    rows = [
        (one.key, _text(one.shown_in(loaded.config)), loaded.source_of(one.key), f"{one.meaning} ({one.limits})")
        for one in shown
    ]
    print_table(("setting", "value", "source", "meaning"), rows, "Settings of loopwright serve")
    return 0


def as_json(loaded: Loaded, prefix: str = "") -> dict[str, dict[str, object]]:
    return {
        key: {
            "value": one.shown_in(loaded.config),
            "source": loaded.source_of(key),
            "variable": one.variable,
            "meaning": one.meaning,
            "limits": one.limits,
        }
        for key, one in all_settings().items()
        if key.startswith(prefix)
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
