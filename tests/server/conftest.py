"""Async tests run on asyncio. The fake Runs is shared with the tests of the transport, which lie beside these."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "transport"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
