"""The models of the server: what they are, and the tokenizer of the program's own. Never runs one. Used by programs."""

from array import array
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from sys import byteorder
from typing import Any

from loopwright.sdk import resources
from loopwright.sdk.argument_check import checked
from loopwright.sdk.run_state import run_state


@dataclass(frozen=True, slots=True)
class Model:
    """Facts about a model. Sizes in tokens."""

    name: str
    traits: tuple[str, ...]  # groups of calls that it can do; docs/calls.md lists them
    vocab_size: int
    max_context: int
    page_size: int
    eos_ids: tuple[int, ...]  # tokens that end a turn
    exactness: str  # reference, deterministic or fast
    description: str
    version: str  # changes when an answer could: quantization and weights
    license: str
    service_id: int  # which of the server's engines runs it


@checked
async def model(name: str = "") -> Model:
    """A model of the server; without a name the one that this program's contexts use. Raises NotFound."""
    if name:
        return _model((await resources.describe(model=name))["model"])
    return _model((await run_state().description())["model"])


@checked
async def models(*, traits: Sequence[str] = ()) -> list[Model]:
    """The models of the server that have all of `traits`."""
    return [_model(data) for data in (await resources.models(traits=traits))["models"]]


@checked
async def prompt_template(*, model: str = "") -> str:
    """A model's chat template, in Jinja; "" if it has none."""
    template: str = (await resources.describe(model=model, include=["prompt_template"]))["prompt_template"]
    return template


@checked
async def vocabulary(*, model: str = "") -> list[bytes]:
    """What each token id adds to a text; b"" for control tokens."""
    data = await resources.vocabulary(model=model)
    lengths = array("H", b64decode(data["lengths"]))
    if byteorder == "big":
        lengths.byteswap()
    text = b64decode(data["bytes"])
    return [text[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]


@checked
async def tokenize(text: str, *, model: str = "") -> list[int]:
    """Token ids of plain text: control tokens written in it stay plain text."""
    ids: list[int] = (await resources.tokenize(text, model=model))["tokens"]
    return ids


@checked
async def detokenize(tokens: Sequence[int], *, model: str = "") -> str:
    """The text of token ids; control tokens have none, and a character cut at the end is left out."""
    text: str = (await resources.detokenize(tokens, model=model))["text"]
    return text


def _model(data: dict[str, Any]) -> Model:
    known: dict[str, Any] = {field.name: data[field.name] for field in fields(Model)}
    return Model(**{**known, "traits": tuple(known["traits"]), "eos_ids": tuple(known["eos_ids"])})
