"""The default model's tokenizer, fetched once into this machine's cache."""

import pytest

from loopwright.text.load_tokenizer import byte_tokenizer, tokenizer_from_gguf
from loopwright.weights.gguf import read_gguf
from loopwright.weights.store import default_store


@pytest.fixture(scope="session")
def smollm2_metadata():
    return dict(read_gguf(default_store().resolve("default").path).metadata)


@pytest.fixture(scope="session")
def smollm2(smollm2_metadata):
    return tokenizer_from_gguf(smollm2_metadata)


@pytest.fixture(scope="session")
def bytes_only():
    return byte_tokenizer()
