"""The keyword options that several functions of the sdk take, with their types, for editors and `loopwright check`.

Never reads one: `segment_options`, `sampling` and `http` do. docs/sampling.md says what each option of sampling does.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from loopwright.sdk.grammar import Grammar
from loopwright.sdk.tracing import Sampler, State


class SamplingOptions(TypedDict, total=False):
    """How a token is chosen. None is as if the option were not given."""

    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | Mapping[str, float] | None  # by id, which JSON writes as text
    allowed: Sequence[int] | None
    temperature: float | None
    top_k: int | None
    typical_p: float | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    logprobs: Literal["raw", "processed"] | None
    top_logprobs: int | None


class SegmentOptions(SamplingOptions, total=False):
    """How a segment goes and when it ends, beside how its tokens are chosen."""

    max_tokens: int | None
    stop: str | Sequence[str]
    until: str | None
    stop_tokens: Sequence[int]
    stop_entropy: float | None
    ignore_eos: bool
    grammar: Grammar | None
    sampler: Sampler | None
    state: State | None


class GenerateOptions(SegmentOptions, total=False):
    """As for a segment; a sampler that cannot be traced may run as Python."""

    sampler_fallback: bool


class RequestOptions(TypedDict, total=False):
    """Those of `http.request`."""

    params: dict[str, Any] | None
    headers: dict[str, str] | None
    json: Any
    data: dict[str, Any] | str | bytes | None
    timeout_s: float
    max_redirects: int
    retries: int | None
