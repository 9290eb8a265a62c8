"""The byte model as a file, for commands that need any model, and the runner, prepared before any of them shows it."""

from pathlib import Path

import pytest

from command_rig import write_byte_gguf
from loopwright.runtime.sandboxes.runner_build import prepare_runner
from loopwright.weights import store


@pytest.fixture(scope="session", autouse=True)
def runner() -> None:
    """The first command that needs the runner would show how it is built, on the stderr that a test reads."""
    prepare_runner(store.cache_folder(), store.no_progress)


@pytest.fixture(scope="session")
def byte_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_gguf(tmp_path_factory.mktemp("model") / "byte.gguf")
