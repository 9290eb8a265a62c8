"""`llm`, the command: prompts, streams, schemas and conversations with a server named in its list of models."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import KEY, PLAIN, TOO_LONG, Server

LLM = Path(sys.executable).with_name("llm")


@pytest.fixture
def home(tmp_path: Path, server: Server) -> Path:
    """A folder of settings that knows the server's models."""
    entry = "- model_id: {0}\n  model_name: {1}\n  api_base: {2}\n  api_key_name: {3}\n  supports_schema: true\n"
    models = [("here", server.model, "right"), ("shout", "program:shout", "right"), ("none", "none", "right")]
    models.append(("locked", server.model, "wrong"))
    text = "".join(entry.format(name, model, server.v1, key) for name, model, key in models)
    (tmp_path / "extra-openai-models.yaml").write_text(text)
    (tmp_path / "keys.json").write_text(json.dumps({"right": KEY, "wrong": "wrong"}))
    return tmp_path


def ask(home: Path, *words: str, code: int = 0) -> str:
    environment = {**os.environ, "LLM_USER_PATH": str(home)}
    done = subprocess.run([LLM, *words], capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_a_prompt_is_answered_streamed_and_not(home: Path) -> None:
    assert ask(home, "-m", "here", "Hi").strip() == PLAIN
    assert ask(home, "-m", "here", "--no-stream", "Hi").strip() == PLAIN
    assert ask(home, "-m", "shout", "Hi").strip() == "HI!"


def test_a_schema_is_held(home: Path) -> None:
    found = json.loads(ask(home, "-m", "here", "--schema", "name, age int", "Hi"))
    assert (isinstance(found["name"], str), isinstance(found["age"], int)) == (True, True)


def test_a_conversation_goes_on(home: Path) -> None:
    ask(home, "-m", "here", "Say: one")
    assert ask(home, "-c", "Say: two").strip() == "two"


@pytest.mark.parametrize(
    ("model", "text", "words"),
    [
        ("locked", "Hi", "the key is not one of this server's"),
        ("none", "Hi", "the model 'none' does not exist"),
        ("here", TOO_LONG, "32768"),
    ],
)
def test_faults_are_said_in_a_line(home: Path, model: str, text: str, words: str) -> None:
    told = ask(home, "-m", model, text, code=1)
    assert words in told
    assert "Traceback" not in told
