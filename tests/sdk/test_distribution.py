"""What a distribution shows of itself."""

import base64
import math
from array import array

from loopwright.sdk.distribution import Distribution


def distribution(*probabilities: float) -> Distribution:
    ids, logprobs = array("i", range(len(probabilities))), array("f", map(math.log, probabilities))
    tail = 1 - sum(probabilities)
    texts = {"ids": base64.b64encode(ids).decode(), "logprobs": base64.b64encode(logprobs).decode()}
    return Distribution({**texts, "covered": 1 - tail, "tail_mass": tail, "truncated": tail > 0})


def test_the_most_probable_tokens_are_shown_with_what_is_left() -> None:
    assert repr(distribution(0.5, 0.25)) == "<Distribution 0: 0.5, 1: 0.25 (2 listed, tail 0.25)>"
    many = repr(distribution(*[0.125] * 8))
    assert many == ("<Distribution 0: 0.125, 1: 0.125, 2: 0.125, 3: 0.125, 4: 0.125, … (8 listed, tail 0)>")
