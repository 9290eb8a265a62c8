"""The flags of verbs that take the whole configuration: one for each setting that has one, `--set` for any, `--config`.

Never checks a value: `compose.config_sources` does, for all sources alike. Used by serve and config.
"""

import argparse

from loopwright.compose.config import server_defaults
from loopwright.compose.config_sources import Given, Loaded, find_setting, load_config
from loopwright.compose.settings import Setting, all_settings
from loopwright.core.errors import BadRequest

CONFIG_HELP = "a configuration in TOML, over which the environment and flags count"
SET_HELP = "any setting, for instance control.max_batch_rows=64; `loopwright config show` lists them"


def add_setting_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE.toml", help=CONFIG_HELP)
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help=SET_HELP)
    defaults = server_defaults()
    for setting in all_settings().values():
        if setting.flag is not None:
            text = f"{setting.meaning} (${setting.variable}; default: {setting.shown_in(defaults)})"
            parser.add_argument(
                setting.flag, dest=setting.key, metavar=_metavar(setting), action="append", help=text.replace("%", "%%")
            )


def load_with_flags(arguments: argparse.Namespace) -> Loaded:
    """What holds for `loopwright serve`. Raises BadRequest."""
    given: dict[str, Given] = {}
    for pair in arguments.set:
        key, is_pair, value = pair.partition("=")
        if not is_pair:
            raise BadRequest(f"--set {pair}: wanted is KEY=VALUE", field="set")
        given[find_setting(key, "--set").key] = Given(value, f"--set {key}", is_text=True)
    for setting in all_settings().values():
        values = getattr(arguments, setting.key, None)
        if setting.flag is not None and values:
            given[setting.key] = Given(values[-1], setting.flag, is_text=True)
    return load_config(arguments.config, {**given, **model_flags(arguments.model)}, defaults=server_defaults())


def model_flags(models: list[str] | None) -> dict[str, Given]:
    """`--model` once for each model: the first is the default one."""
    if not models:
        return {}
    first, *more = models
    return {"model": Given(first, "--model"), "more_models": Given(more, "--model")}


def _metavar(setting: Setting) -> str:
    if "integer" in setting.limits:
        return "auto|N" if "auto" in setting.limits else "N"
    return "FOLDER" if setting.key.endswith("_dir") else "NAME"
