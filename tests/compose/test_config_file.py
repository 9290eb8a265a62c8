"""A configuration from a TOML file."""

import argparse
from pathlib import Path

import pytest

from loopwright.cli import serve
from loopwright.compose.config import Config
from loopwright.compose.config_file import read_config
from loopwright.core.errors import BadRequest
from loopwright.runtime.tool_config import HttpToolConfig

FILE = """
model = "small"
[engine]
num_blocks = 77
[server]
port = 9
[tools.http.weather]
url = "https://example.org/{city}"
description = "The weather."
"""


def test_a_file_is_the_tree_and_without_one_there_are_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(FILE)
    config = read_config(str(tmp_path / "c.toml"))
    assert (config.model, config.engine.num_blocks, config.server.port) == ("small", 77, 9)
    assert config.tools.http == {
        "weather": HttpToolConfig(url="https://example.org/{city}", description="The weather.")
    }
    assert read_config(None) == Config()


def test_flags_count_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(FILE)
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    flags = parser.parse_args(["--config", str(tmp_path / "c.toml"), "--port", "10", "--model", "large"])
    config = serve._config(flags, read_config(flags.config))
    assert (config.model, config.engine.num_blocks, config.server.port) == ("large", 77, 10)
    assert config.num_runtime_workers == 0
    assert len(config.tools.http) == 1


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("modell = 'x'", "unknown field `modell`"),
        ("[server]\nportt = 1", "unknown field `portt`"),
        ("[server]\nport = 'x'", "$.server.port"),
        ("[tools.http.'a b']\nurl = 'http://x/'\ndescription = ''", "$.tools.http"),
        ("[tools.mcp.a]", "either a command or a url"),
        ("[tools.mcp.a]\nurl = 'http://x/'\nenv = {A = 'b'}", "env with a command"),
        ("x = ", "not TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(text: str, wrong: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(BadRequest) as caught:
        read_config(str(tmp_path / "c.toml"))
    assert wrong in caught.value.message
    assert "c.toml" in caught.value.message
