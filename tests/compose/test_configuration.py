"""The configuration: a file, under the environment, under flags; what is wrong names key, value, limit and source."""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from loopwright.cli import main, serve
from loopwright.cli.setting_flags import add_setting_flags, load_with_flags
from loopwright.compose.config import Config, server_defaults
from loopwright.compose.config_sources import Given, Loaded, load_config
from loopwright.compose.settings import NO_SETTINGS, all_settings
from loopwright.core.errors import BadRequest
from loopwright.runtime.tool_config import HttpToolConfig
from loopwright.server.connection import STALL_S

FILE = """
model = "small"
[engine]
num_blocks = 77
[server]
port = 9
[runtime.caps]
max_pages = 5
[tools.http.weather]
url = "https://example.org/{city}"
description = "The weather."
headers = { authorization = "Bearer hunter2" }
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "c.toml"
    path.write_text(FILE)
    return str(path)


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Loaded]:
    """What a command line gives; the environment has no settings but those that a test sets."""
    for setting in all_settings().values():
        monkeypatch.delenv(setting.variable, raising=False)

    def load(*words: str) -> Loaded:
        parser = argparse.ArgumentParser()
        add_setting_flags(parser)
        return load_with_flags(parser.parse_args(words))

    return load


def test_a_file_is_the_tree_and_without_one_there_are_the_defaults(file: str) -> None:
    loaded = load_config(file, environment={})
    config = loaded.config
    assert (config.model, config.engine.num_blocks, config.server.port) == ("small", 77, 9)
    tool = HttpToolConfig(
        url="https://example.org/{city}", description="The weather.", headers={"authorization": "Bearer hunter2"}
    )
    assert config.tools.http == {"weather": tool}
    assert config.runtime.caps.max_pages == 5
    assert config.runtime.caps.max_queues == Config().runtime.caps.max_queues, "its neighbours keep their defaults"
    assert loaded.source_of("server.port") == file
    assert loaded.source_of("server.host") == "default"
    assert load_config(None, environment={}).config == Config()
    assert Config().server.stall_s == STALL_S


def test_the_environment_counts_over_the_file_and_flags_over_both(
    file: str, flags: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOPWRIGHT_SERVER_PORT", "10")
    monkeypatch.setenv("LOOPWRIGHT_ENGINE_NUM_BLOCKS", "78")
    loaded = flags("--config", file, "--port", "11", "--set", "control.max_batch_rows=7")
    config = loaded.config
    assert (config.model, config.engine.num_blocks, config.server.port) == ("small", 78, 11)
    assert config.control.max_batch_rows == 7
    sources = [loaded.source_of(key) for key in ("model", "engine.num_blocks", "server.port", "control.max_batch_rows")]
    assert sources == [file, "LOOPWRIGHT_ENGINE_NUM_BLOCKS", "--port", "--set control.max_batch_rows"]


def test_the_first_model_of_the_flags_is_the_default_one_and_replaces_all_of_the_file(
    file: str, flags: Callable[..., Loaded]
) -> None:
    assert flags("--config", file, "--model", "a", "--model", "b").config.model_names == ("a", "b")
    assert flags("--config", file, "--set", "more_models=b, c").config.model_names == ("small", "b", "c")


def test_a_server_starts_as_many_processes_as_its_settings_say(flags: Callable[..., Loaded]) -> None:
    assert Config().num_runtime_workers == 0, "who does not serve needs one process"
    assert flags().config == server_defaults()
    assert flags("--processes", "1").config.num_runtime_workers == 0
    assert flags("--processes", "4").config.num_runtime_workers == 3
    assert flags("--processes", "auto").config.num_runtime_workers == flags().config.num_runtime_workers


def test_text_of_the_environment_becomes_what_its_setting_is() -> None:
    values = {
        "LOOPWRIGHT_CONTROL_PREFIX_CACHE": "false",
        "LOOPWRIGHT_CONTROL_MAX_IDLE_S": "0.5",
        "LOOPWRIGHT_MORE_MODELS": '["a,b", "c"]',
        "LOOPWRIGHT_RUNTIME_STATE_DIR": "",
        "LOOPWRIGHT_TOOLS_HTTP": '{"t": {"url": "http://x/", "description": "d"}}',
        "LOOPWRIGHT_CACHE_DIR": "/somewhere",
        "LOOPWRIGHT_TEST_ANYTHING": "1",
        "OTHER_PORT": "x",
    }
    config = load_config(None, defaults=server_defaults(), environment=values).config
    assert config.control.prefix_cache is False
    assert config.control.max_idle_s == 0.5
    assert config.more_models == ("a,b", "c")
    assert config.runtime.state_dir is None
    assert set(config.tools.http) == {"t"}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("modell = 'x'", ["modell", "no setting", "model?"]),
        ("[server]\nportt = 1", ["server.portt", "server.port?"]),
        ("[servers]\nport = 1", ["servers", "no setting"]),
        ("server = 3", ["server is 3", "table"]),
        ("[runtime.caps]\nmax_page = 1", ["runtime.caps.max_page,", "runtime.caps.max_pages?"]),
        ("[server]\nport = 'x'", ["server.port is 'x'", "expected `int`"]),
        ("[server]\nport = 65536", ["server.port is 65536", "<= 65535"]),
        ("[engine]\nnum_blocks = -1", ["engine.num_blocks is -1", ">= 0"]),
        ("processes = 0", ["processes is 0", ">= 1"]),
        ("[control]\npolicy = 'lazy'", ["control.policy is 'lazy'"]),
        ("[control]\nmax_batch_rows = 600\nmax_batch_tokens = 512", ["control", "600", "below max_batch_tokens 512"]),
        ("[tools.http.'a b']\nurl = 'http://x/'\ndescription = ''", ["tools.http"]),
        ("[tools.http.a]\nurl = 'http://x/'\ndescription = ''\nheader = {}", ["tools.http", "`header`", "headers?"]),
        ("[tools.mcp.a]", ["either a command or a url"]),
        ("[tools.mcp.a]\nurl = 'http://x/'\nenv = {A = 'b'}", ["env with a command"]),
        ("x = ", ["not TOML"]),
    ],
)
def test_what_is_wrong_with_a_file_is_named(text: str, wrong: list[str], tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(BadRequest) as caught:
        load_config(str(tmp_path / "c.toml"), environment={})
    said = f"{caught.value.message} ({caught.value.hint})"
    assert [one for one in wrong if one not in said] == [], said
    assert "c.toml" in said


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("LOOPWRIGHT_SERVER_PRT", "1", ["LOOPWRIGHT_SERVER_PRT", "no setting", "LOOPWRIGHT_SERVER_PORT?"]),
        ("LOOPWRIGHT_CACHE_DIRR", "x", ["LOOPWRIGHT_CACHE_DIR?"]),
        ("LOOPWRIGHT_SERVER_PORT", "65536", ["server.port is '65536'", "<= 65535", "LOOPWRIGHT_SERVER_PORT"]),
        ("LOOPWRIGHT_PROCESSES", "many", ["processes is 'many'", "LOOPWRIGHT_PROCESSES"]),
        ("LOOPWRIGHT_TOOLS_HTTP", "{", ["tools.http is ***", "not JSON", "LOOPWRIGHT_TOOLS_HTTP"]),
    ],
)
def test_what_is_wrong_with_the_environment_is_named(name: str, value: str, wrong: list[str]) -> None:
    with pytest.raises(BadRequest) as caught:
        load_config(None, environment={name: value})
    said = f"{caught.value.message} ({caught.value.hint})"
    assert [one for one in wrong if one not in said] == [], said


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--port", "-1"], ["server.port is '-1'", ">= 0", "--port"]),
        (["--set", "server.prt=1"], ["server.prt", "--set", "server.port?"]),
        (["--set", "server.port"], ["KEY=VALUE"]),
        (["--set", "server.port=x"], ["server.port is 'x'", "--set server.port"]),
    ],
)
def test_what_is_wrong_with_a_flag_is_named(words: list[str], wrong: list[str], flags: Callable[..., Loaded]) -> None:
    with pytest.raises(BadRequest) as caught:
        flags(*words)
    said = f"{caught.value.message} ({caught.value.hint})"
    assert [one for one in wrong if one not in said] == [], said


def test_a_wrong_value_of_a_table_does_not_show_its_secrets(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(FILE + "method = 'FETCH'\n")
    with pytest.raises(BadRequest) as caught:
        load_config(str(tmp_path / "c.toml"), environment={})
    assert "hunter2" not in caught.value.message
    assert "tools.http" in caught.value.message


def test_every_flag_of_serve_sets_one_setting() -> None:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    mine = {word for action in parser._actions for word in action.option_strings} - {"-h", "--help"}
    of_settings = [one.flag for one in all_settings().values() if one.flag is not None]
    assert sorted(mine - {"--config", "--set"}) == sorted(of_settings)


def test_settings_have_meanings_and_variables_of_their_own() -> None:
    settings = all_settings().values()
    assert [one.key for one in settings if not one.meaning] == []
    assert len({one.variable for one in settings} | set(NO_SETTINGS)) == len(settings) + len(NO_SETTINGS)


def test_config_show_tells_value_source_and_meaning_and_masks_secrets(
    file: str, flags: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOOPWRIGHT_CONTROL_POLICY", "eager")
    assert main(["config", "show", "--config", file, "--port", "11", "--json"]) == 0
    out = capsys.readouterr().out
    shown = json.loads(out)
    assert list(shown) == list(all_settings())
    assert (shown["server.port"]["value"], shown["server.port"]["source"]) == (11, "--port")
    assert (shown["control.policy"]["value"], shown["control.policy"]["source"]) == (
        "eager",
        "LOOPWRIGHT_CONTROL_POLICY",
    )
    assert shown["engine.num_blocks"]["source"] == file
    assert shown["tools.http"]["value"]["weather"]["headers"] == {"authorization": "***"}
    assert "hunter2" not in out

    assert main(["config", "show", "server", "--port", "11"]) == 0
    table = capsys.readouterr().out
    assert re.search(r"server\.port +│ 11 +│ --port +│ 0: any free one", table)
    assert "engine" not in table
    assert main(["config", "show", "serverr"]) == 1


def test_a_value_given_in_code_is_checked_like_any_other() -> None:
    with pytest.raises(BadRequest, match=r"server\.port is 70000, from a test"):
        load_config(None, {"server.port": Given(70000, "a test")}, environment={})


def test_what_outlives_a_server_lies_where_it_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert server_defaults().runtime.programs_dir == str(tmp_path / "xdg" / "loopwright" / "programs")
    monkeypatch.setenv("LOOPWRIGHT_STATE_DIR", str(tmp_path / "own"))
    assert server_defaults().runtime.programs_dir == str(tmp_path / "own" / "programs")
    assert server_defaults().runtime.state_dir == str(tmp_path / "own" / "state")
