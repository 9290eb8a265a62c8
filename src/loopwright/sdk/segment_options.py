"""Turns the options of a segment into the fields of its call. Never looks at what a context holds.

Used by Context; what is left of the options are those of sampling.
"""

from collections.abc import Mapping
from typing import Any

from loopwright.sdk.errors import BadRequest
from loopwright.sdk.grammar import grammar_fields
from loopwright.sdk.run_state import RunState
from loopwright.sdk.tracing import is_traceable, sampler_fields

MAX_STOPS = 64
"""Of one segment, as the ABI has it; `until` is one of them."""


def segment_fields(options: Mapping[str, Any], model: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields, and the options that are not among them. Raises Untraceable for a sampler that has no graph."""
    left = dict(options)
    stop, max_tokens, grammar = left.pop("stop", ()), left.pop("max_tokens", 256), left.pop("grammar", None)
    watch, until = left.pop("watch", None), left.pop("until", None)
    stops = [stop] if isinstance(stop, str) else list(stop)
    sampler, state = left.pop("sampler", None), left.pop("state", None) or {}
    fields = {
        "stop": stops if until is None else [_checked(until, len(stops)), *stops],
        "max_tokens": model["max_context"] if max_tokens is None else max_tokens,
        "stop_tokens": [*([] if left.pop("ignore_eos", False) else model["eos_ids"]), *left.pop("stop_tokens", ())],
        "grammar": None if grammar is None else grammar_fields(grammar),
        "stop_entropy": left.pop("stop_entropy", None),
        "calls": left.pop("calls", None),
        "watch": None if watch is None else {"window": watch},
    }
    return fields | sampler_fields(sampler, state, model["vocab_size"]), left


def _checked(until: str, num_stops: int) -> str:
    if not until:
        raise BadRequest("until: '' is empty; a text of at least one character ends a segment", field="until")
    if num_stops == MAX_STOPS:
        raise BadRequest(f"until: is one stop more beside {num_stops} of stop; the limit is {MAX_STOPS}", field="until")
    return until


async def take_untraceable(options: dict[str, Any], run: RunState, model: str) -> bool:
    """Whether `sampler_fallback`, which is taken out of the options, is needed: the sampler has no graph."""
    if not options.pop("sampler_fallback", False) or options.get("sampler") is None:
        return False
    vocab_size: int = (await run.description(model))["model"]["vocab_size"]
    return not is_traceable(options["sampler"], options.get("state") or {}, vocab_size)
