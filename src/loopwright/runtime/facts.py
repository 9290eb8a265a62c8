"""What a program may know of its run and its model. Never changes anything. Called by the host."""

from array import array
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from sys import byteorder
from typing import Any, TypeAlias

from loopwright.core.host_calls import Adapters, Describe, EmbedsNeeded, Models
from loopwright.core.ids import ONE_TENANT, RunId, TenantId
from loopwright.core.model_info import ModelInfo
from loopwright.text.chat_template import ChatTemplate
from loopwright.text.tokenizer import Tokenizer

FactCall: TypeAlias = Describe | Models | Adapters | EmbedsNeeded


@dataclass(frozen=True, slots=True)
class ModelText:
    """The text side of a model."""

    info: ModelInfo
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What was given to a run when it started."""

    run_id: RunId
    seed: int
    arguments: Mapping[str, Any]
    model: str = ""  # its own model
    parent: Mapping[str, Any] | None = None  # {run, context} of the run that spawned it
    tenant: TenantId = ONE_TENANT


def answer(call: FactCall, run: RunFacts, model: ModelText, models: Sequence[ModelInfo]) -> dict[str, Any]:
    """What the call completes with; `model` is the one that it names, `models` are all."""
    match call:
        case Describe():
            return _describe(call, run, model)
        case Models():
            return {"models": [one for one in models if set(call.traits) <= set(one.traits)]}
        case Adapters() | EmbedsNeeded():
            raise AssertionError("no engine runs this: its trait is refused before")


def vocabulary(model: ModelText) -> dict[str, str]:
    """The answer to a Vocabulary. Takes milliseconds: for a thread."""
    tokens = model.tokenizer.token_bytes
    num_unknown = model.info.vocab_size - len(tokens)  # ids that the model has and its tokenizer does not
    lengths = array("H", [*map(len, tokens), *[0] * num_unknown])
    if byteorder == "big":
        lengths.byteswap()
    return {"bytes": b64encode(b"".join(tokens)).decode(), "lengths": b64encode(lengths.tobytes()).decode()}


def _describe(call: Describe, run: RunFacts, model: ModelText) -> dict[str, Any]:
    found: dict[str, Any] = {"run": run.run_id, "version": _version(), "seed": run.seed, "model": model.info}
    if "arguments" in call.include:
        found["arguments"] = run.arguments
    if "prompt_template" in call.include:
        found["prompt_template"] = model.tokenizer.chat_template
    if "parent" in call.include:
        found["parent"] = run.parent
    if "tool_format" in call.include:
        found["tool_format"] = model.info.tool_format
    return found


@cache
def _version() -> str:
    return version("loopwright")
