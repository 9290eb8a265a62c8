"""Builds the Tokenizer of a Hugging Face folder: tokenizer.json, read by the library that wrote it.

Knows BPE in its two forms: over the byte-level alphabet, and over SentencePiece's with bytes to fall back to (Llama 2,
Mistral, Gemma). Never guesses: another form is refused by name. Called through `load_tokenizer`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE

from loopwright.core.errors import BadRequest
from loopwright.text import byte_level
from loopwright.text.sentence_pieces import SPACE, piece_bytes
from loopwright.text.tokenizer import TURN_MARKS, Before, LibraryEncoder, Tokenizer, end_ids

_Part = dict[str, Any]  # a normalizer, pre-tokenizer or decoder, as tokenizer.json writes it

_MAX_VOCAB_SIZE = 1 << 24  # beyond it the engine refuses the model
_CHILDREN = ("normalizers", "pretokenizers", "decoders")  # where a Sequence of one of the three has its parts
_EVERYWHERE: frozenset[Before] = frozenset({"nothing", "control"})
_METASPACE_PLACES: Mapping[object, frozenset[Before]] = {
    "always": _EVERYWHERE,
    "first": frozenset({"nothing"}),
    "never": frozenset(),
}
_SENTENCE_PIECE_DECODERS = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


@dataclass(frozen=True, slots=True)
class _SpaceRule:
    """Where the library puts a space that nobody wrote; the rule of Tokenizer's fields of the same names."""

    space_after: frozenset[Before] = frozenset()
    doubles_space: bool = True


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder: tokenizer.json, and what tokenizer_config.json, config.json,
    generation_config.json and chat_template.jinja add where they exist. Raises BadRequest that names the file."""
    path = folder / "tokenizer.json"
    library = _read_library(path)
    bytes_of, bytes_of_added = _alphabet(path, library)
    config, model_config = _read_json(folder / "tokenizer_config.json"), _read_json(folder / "config.json")
    _make_turn_marks_special(library)
    added = library.get_added_tokens_decoder()
    special = {one: token for one, token in added.items() if token.special}
    _check_flags(path, special)
    controls = {token.content: one for one, token in special.items()}
    bos_id = controls.get(_token_text(config.get("bos_token")))
    opening = library.encode("", add_special_tokens=True).ids[:1]  # what the post-processor puts before every text
    space_rule = _take_space_rule(path, library)
    library.encode_special_tokens = True  # from here on: control tokens in a text are text
    pieces = {one: piece for piece, one in library.get_vocab(with_added_tokens=True).items()}
    token_bytes = [b""] * _vocab_size(pieces, model_config)
    ends = [controls.get(_token_text(config.get("eos_token"))), *_generation_ends(folder, len(token_bytes))]
    for one, piece in pieces.items():
        if piece not in controls:
            token_bytes[one] = bytes_of_added(piece) if one in added else bytes_of(piece)
    tokenizer = Tokenizer(
        encoder=LibraryEncoder(library),
        token_bytes=tuple(token_bytes),
        controls=controls,
        eos_ids=end_ids(ends, controls),
        bos_id=bos_id,
        add_bos=bos_id is not None and opening == [bos_id],
        chat_template=_folder_template(folder, config),
        space_after=space_rule.space_after,
        doubles_space=space_rule.doubles_space,
        strips_before=frozenset(one for one, token in special.items() if token.lstrip),
        strips_after=frozenset(one for one, token in special.items() if token.rstrip),
    )
    _check_plain_text_stays_plain(tokenizer)
    return tokenizer


def _read_library(path: Path) -> Library:
    try:
        library = Library.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions for what it cannot read
        raise BadRequest(f"{path} cannot be read as a tokenizer: {error}", field="model") from error
    library.no_truncation()
    library.no_padding()
    if not isinstance(library.model, BPE):
        raise BadRequest(
            f"{path} has a model of type {type(library.model).__name__}; this version knows BPE", field="model"
        )
    return library


def _alphabet(path: Path, library: Library) -> tuple[Callable[[str], bytes], Callable[[str], bytes]]:
    """How a piece, and how an added token is written."""
    decoders = _flat(_part(library.decoder))
    kinds = [str(decoder.get("type")) for decoder in decoders]
    if kinds == ["ByteLevel"]:
        return byte_level.bytes_of, str.encode
    replaced = [(one.get("pattern"), one.get("content")) for one in decoders if one.get("type") == "Replace"]
    is_known = _SENTENCE_PIECE_DECODERS.issuperset(kinds) and replaced in ([], [({"String": SPACE}, " ")])
    if not is_known or not {"Replace", "Metaspace"}.intersection(kinds):
        raise BadRequest(
            f"{path} decodes with {', '.join(kinds) or 'nothing'}; this version knows ByteLevel, and SentencePiece's "
            "pieces (Replace or Metaspace, ByteFallback, Fuse, Strip)",
            field="model",
        )
    missing = [f"<0x{byte:02X}>" for byte in range(256) if library.token_to_id(f"<0x{byte:02X}>") is None]
    if missing or not library.model.byte_fallback:
        raise BadRequest(
            f"{path} has no bytes to fall back to for characters outside its vocabulary; they could not be written",
            field="model",
        )
    return piece_bytes, piece_bytes


def _make_turn_marks_special(library: Library) -> None:
    added = {token.content for token in library.get_added_tokens_decoder().values() if not token.special}
    library.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in added & TURN_MARKS])


def _check_flags(path: Path, special: Mapping[int, AddedToken]) -> None:
    for token in special.values():
        if token.single_word:
            raise BadRequest(
                f"{path}: control token {token.content!r} has single_word, which this version does not know",
                field="model",
            )


def _take_space_rule(path: Path, library: Library) -> _SpaceRule:
    """Takes the library's own rule away, because it cannot know what a text follows."""
    normalizer, pre_tokenizer = _part(library.normalizer), _part(library.pre_tokenizer)
    rules: list[_SpaceRule] = []
    for part in _flat(normalizer):
        if part.get("type") == "Prepend":
            if part.get("prepend") not in (SPACE, " "):
                raise BadRequest(f"{path} puts {part.get('prepend')!r} before every text", field="model")
            rules.append(_SpaceRule(_EVERYWHERE))
            part["prepend"] = ""
    for part in _flat(pre_tokenizer):
        if part.get("type") == "Metaspace":
            rules.append(_SpaceRule(_METASPACE_PLACES[part.get("prepend_scheme", "always")], doubles_space=False))
            part["prepend_scheme"] = "never"
        elif part.get("type") == "ByteLevel" and part.get("add_prefix_space"):
            rules.append(_SpaceRule(_EVERYWHERE, doubles_space=False))
            part["add_prefix_space"] = False
    if rules:
        _set_parts(library, normalizer, pre_tokenizer)
    return next((rule for rule in rules if rule.space_after), _SpaceRule())


def _part(part: Any) -> _Part:  # noqa: ANN401 (any of the library's classes; they share only this)
    return {} if part is None else dict(json.loads(part.__getstate__()))


def _flat(part: _Part) -> list[_Part]:
    """The parts of a part, which may be a Sequence of them; the very objects, so that they can be changed."""
    if part.get("type") == "Sequence":
        return [one for key in _CHILDREN for child in part.get(key, ()) for one in _flat(child)]
    return [part] if part else []


def _set_parts(library: Library, normalizer: _Part, pre_tokenizer: _Part) -> None:
    # The library's classes cannot be made from JSON one by one, only a whole tokenizer can.
    empty = json.loads(Library(BPE()).to_str())
    parts = Library.from_str(
        json.dumps(empty | {"normalizer": normalizer or None, "pre_tokenizer": pre_tokenizer or None})
    )
    if parts.normalizer is not None:
        library.normalizer = parts.normalizer
    if parts.pre_tokenizer is not None:
        library.pre_tokenizer = parts.pre_tokenizer


def _read_json(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise BadRequest(f"{path} cannot be read: {error}", field="model") from error
    if not isinstance(value, dict):
        raise BadRequest(f"{path} holds no JSON object", field="model")
    return value


def _token_text(value: object) -> str:
    # Written as a string, or as an object with the string under "content".
    return str(value.get("content")) if isinstance(value, dict) else str(value)


def _generation_ends(folder: Path, vocab_size: int) -> list[int]:
    path = folder / "generation_config.json"
    value = _read_json(path).get("eos_token_id")
    ends: list[int] = []
    for one in value if isinstance(value, list) else [] if value is None else [value]:
        if isinstance(one, int) and not isinstance(one, bool) and 0 <= one < vocab_size:
            ends.append(one)
        else:
            raise BadRequest(f"{path}: eos_token_id is {one!r}; the model has {vocab_size} tokens", field="model")
    return ends


def _vocab_size(pieces: Mapping[int, str], model_config: Mapping[str, object]) -> int:
    # A model may score more ids than its tokenizer names: they are padding.
    size = model_config.get("vocab_size")
    return max(size if isinstance(size, int) and size <= _MAX_VOCAB_SIZE else 0, max(pieces, default=-1) + 1)


def _folder_template(folder: Path, config: Mapping[str, object]) -> str:
    separate = folder / "chat_template.jinja"
    if separate.is_file():
        try:
            return separate.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadRequest(f"{separate} cannot be read: {error}", field="model") from error
    template = config.get("chat_template", "")
    if isinstance(template, list):  # several, by name
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default", "")
    return template if isinstance(template, str) else ""


def _check_plain_text_stays_plain(tokenizer: Tokenizer) -> None:
    for text in tokenizer.controls:
        if tokenizer.control_ids.intersection(tokenizer.encode(text)):
            raise BadRequest(
                f"the model's tokenizer makes a control token of the plain text {text!r}, so that a user could",
                field="model",
            )
