"""What a loaded model says of itself."""

import pytest

from loopwright.compose.config import EngineConfig
from loopwright.compose.model_parts import open_model
from loopwright.engine.model_runner import ModelRunner
from loopwright.weights import store
from system_rig import in_loop

pytestmark = pytest.mark.model


def test_a_model_has_the_traits_of_its_engine_and_its_tokenizer_and_a_version_of_its_weights() -> None:
    files = store.resolve("default", store.no_progress)

    async def scenario() -> None:
        async with open_model(files, EngineConfig(num_blocks=16, num_slots=16)) as parts:
            assert set(parts.info.traits) == {*ModelRunner.traits, "tokenize"}
            assert parts.info.version == f"{parts.info.quantization}-{parts.executor.dtype}-{files.sha256[:12]}"
            assert len(parts.info.version) > 12

    in_loop(scenario)


def test_a_model_keeps_its_weights_as_its_name_says_whatever_the_others_do() -> None:
    files = store.resolve("default:dtype=float32", store.no_progress)

    async def scenario() -> None:
        async with open_model(files, EngineConfig(num_blocks=16, num_slots=16, dtype="auto")) as parts:
            assert parts.dtype == parts.executor.dtype == "float32"
            assert parts.info.name.endswith(":dtype=float32")

    in_loop(scenario)
