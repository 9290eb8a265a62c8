"""Every architecture equals transformers, in every mode, with gaps in the positions, and through both file formats."""

import numpy as np
import pytest
import torch
from engine_rig import Rig, log_softmax, some_tokens, transformers_logprobs
from parity import ARCHITECTURES, MAX_ERROR, MODES, Subject, random_subject

from loopwright.engine.models import ARCHITECTURES as KNOWN
from loopwright.engine.oracle import Oracle


@pytest.fixture(scope="module", params=ARCHITECTURES)
def subject(request: pytest.FixtureRequest) -> Subject:
    return random_subject(request.param)


def test_no_architecture_is_left_out() -> None:
    assert {fields.get("architecture", "llama") for fields in ARCHITECTURES.values()} == set(KNOWN)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_equals_transformers(subject: Subject, mode: str) -> None:
    assert MODES[mode](subject) <= MAX_ERROR


def test_positions_with_gaps_equal_transformers(subject: Subject) -> None:
    """A window counts positions: the second gap is wider than any window here, the first is not."""
    tokens, positions = some_tokens(40), [*range(20), *range(30, 45), *range(300, 305)]
    expected = transformers_logprobs(subject.reference, tokens, positions)
    np.testing.assert_allclose(Rig(subject.model).logprobs(tokens, positions), expected, atol=MAX_ERROR)
    assert np.abs(expected - subject.expected(tokens)).max() > 0.01  # the gaps do count


def test_the_oracle_equals_transformers_under_a_mask_and_with_gaps(subject: Subject) -> None:
    tokens, positions = some_tokens(30), [*range(20), *range(100, 110)]
    is_visible = torch.ones(30, 30, dtype=torch.bool).tril()
    is_visible[10:, 3:7] = False
    expected = transformers_logprobs(subject.reference, tokens, positions, is_visible)
    np.testing.assert_allclose(
        log_softmax(Oracle(subject.model).logits(tokens, positions, is_visible)), expected, atol=MAX_ERROR
    )
