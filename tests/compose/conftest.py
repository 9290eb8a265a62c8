"""The byte model as a file, for servers that need any model."""

from pathlib import Path

import pytest

from command_rig import write_byte_gguf


@pytest.fixture(scope="session")
def byte_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_gguf(tmp_path_factory.mktemp("model") / "byte.gguf")
