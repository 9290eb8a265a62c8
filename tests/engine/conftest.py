"""Fixtures of the engine's tests: the byte model, and the real default model for tests marked `model`."""

import os
from pathlib import Path

import pytest

from loopwright.engine.byte_model import byte_model
from loopwright.engine.loaded_model import LoadedModel
from loopwright.engine.loader import load_model
from loopwright.weights.store import resolve


@pytest.fixture(scope="session")
def model() -> LoadedModel:
    return byte_model(seed=1)


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    if named := os.environ.get("LOOPWRIGHT_TEST_MODEL"):
        return Path(named)
    return resolve("default").path


@pytest.fixture(scope="session")
def default_model(default_model_path: Path) -> LoadedModel:
    return load_model(default_model_path)
