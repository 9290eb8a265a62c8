"""A model of random weights is served as any other: by the name of its shape, with a tokenizer that is made up."""

import pytest

from loopwright.compose.config import Config, EngineConfig
from loopwright.compose.model_parts import DUMMY_VOCABULARIES, load_tokenizer, open_model
from loopwright.core.errors import BadRequest
from loopwright.engine.cuda.dummy import SHAPES
from loopwright.weights import store


async def test_a_dummy_is_opened_by_its_shape() -> None:
    config = Config(engine=EngineConfig(load="dummy", shape="tiny", num_blocks=16, num_slots=4, num_threads=1))
    assert config.model_names == ("dummy:tiny",)
    async with open_model(store.resolve(config.model_names[0]), config.engine) as parts:
        assert (parts.info.name, parts.info.vocab_size, parts.info.num_pages) == ("dummy:tiny", 512, 16)
        assert parts.info.quantization == "dummy"
        assert parts.text.tokenizer.decode(parts.text.tokenizer.encode("Olá")) == "Olá"
        assert parts.text.tokenizer.decode([400, 401]) == " w400 w401"


async def test_a_shape_that_does_not_exist_is_named() -> None:
    with pytest.raises(BadRequest, match="there is no shape 'huge'; known are"):
        async with open_model(store.resolve("dummy:huge"), EngineConfig(num_blocks=16)):
            pass


def test_every_shape_has_a_tokenizer_of_its_size() -> None:
    assert {name: config.vocab_size for name, config in SHAPES.items()} == DUMMY_VOCABULARIES
    assert load_tokenizer(store.resolve("dummy:llama-1b")).vocab_size == 128256
