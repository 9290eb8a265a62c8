"""What every test may ask for: the default model's file and its engine, loaded once. What is collected stays."""

import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings

from loopwright.weights import store
from system_rig import SmolLM2

settings.register_profile("untimed", settings.default, deadline=None)  # a busy machine is no fault
settings.load_profile("untimed")


def pytest_collection_finish() -> None:
    """Millions of objects of modules and tests: to look through them for garbage takes most of a second each time, and
    a test that asks what is left asks for what came after them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def smollm2() -> Iterator[SmolLM2]:
    """The real default model, fetched on first use and loaded once."""
    model = SmolLM2.load(store.resolve("default", store.no_progress))
    yield model
    model.close()
