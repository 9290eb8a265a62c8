"""Builds the Tokenizer that a GGUF file's metadata describes. Never reads a file, and never guesses.

Knows byte-level BPE (tokenizer.ggml.model "gpt2") and SentencePiece merged by score ("llama", also in Gemma's files).
Called through `load_tokenizer`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE

from loopwright.core.errors import BadRequest
from loopwright.text import byte_level
from loopwright.text.pre_tokenizers import Cut, cut_named, pre_tokenizer
from loopwright.text.sentence_pieces import SPACE, SentencePieceEncoder, byte_of, piece_bytes
from loopwright.text.tokenizer import TURN_MARKS, Encoder, LibraryEncoder, Tokenizer, end_ids

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6  # tokenizer.ggml.token_type


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """What every model has, by how it is written."""

    pieces: list[str]
    controls: dict[str, int]
    user_defined: dict[str, int]  # text that is one token wherever it stands
    bytes: dict[str, int]
    normal: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Scheme:
    """What differs between the two kinds of models."""

    encoder: Encoder
    bytes_of: Callable[[str], bytes]  # of a piece that is not user-defined
    bytes_of_user_defined: Callable[[str], bytes]
    adds_bos: bool  # this and the next are what holds when the file does not say
    has_space_prefix: bool


def tokenizer_from_gguf(metadata: Mapping[str, object]) -> Tokenizer:
    """The tokenizer that a GGUF file describes. Raises BadRequest that names what it does not know, or what is
    missing."""
    match metadata.get("tokenizer.ggml.model"):
        case "gpt2":
            read_scheme = _byte_level
        case "llama":
            read_scheme = _sentence_pieces
        case model:
            raise BadRequest(
                f"the model's tokenizer is {model!r}; this version knows 'gpt2' (byte-level BPE) and 'llama' "
                "(SentencePiece, merged by score)",
                field="model",
            )
    vocabulary = _read_vocabulary(metadata)
    scheme = read_scheme(metadata, vocabulary)
    ends = [_optional_id(metadata, f"tokenizer.ggml.{name}_token_id", vocabulary) for name in ("eos", "eot", "eom")]
    bos_id = _optional_id(metadata, "tokenizer.ggml.bos_token_id", vocabulary)
    has_space_prefix = metadata.get("tokenizer.ggml.add_space_prefix", scheme.has_space_prefix)
    return Tokenizer(
        encoder=scheme.encoder,
        token_bytes=tuple(_token_bytes(vocabulary, scheme)),
        controls=vocabulary.controls,
        eos_ids=end_ids(ends, vocabulary.controls),
        bos_id=bos_id,
        add_bos=bos_id is not None and bool(metadata.get("tokenizer.ggml.add_bos_token", scheme.adds_bos)),
        chat_template=str(metadata.get("tokenizer.chat_template", "")),
        space_after=frozenset({"nothing", "control"} if has_space_prefix else ()),
    )


def byte_level_bpe(vocabulary: dict[str, int], merges: list[tuple[str, str]], cut: Cut) -> Library:
    """Byte-level BPE in the library. Control tokens are not in `vocabulary`, so no text can become one."""
    try:
        library = Library(BPE(vocabulary, merges, ignore_merges=cut.takes_whole_words))
    except Exception as error:  # the library raises bare Exceptions for merges outside the vocabulary
        raise BadRequest(f"the model's tokenizer is damaged: {error}", field="model") from error
    library.pre_tokenizer = pre_tokenizer(cut)
    library.decoder = decoders.ByteLevel()
    return library


def _byte_level(metadata: Mapping[str, object], vocabulary: _Vocabulary) -> _Scheme:
    cut = cut_named(metadata.get("tokenizer.ggml.pre", "default"))
    merges = [_merge(line) for line in _strings(metadata, "tokenizer.ggml.merges")]
    plain = vocabulary.normal | vocabulary.user_defined | vocabulary.bytes
    library = byte_level_bpe(plain, merges, cut)
    library.add_tokens([AddedToken(piece, normalized=False) for piece in vocabulary.user_defined])
    return _Scheme(LibraryEncoder(library), byte_level.bytes_of, str.encode, cut.adds_bos, has_space_prefix=False)


def _sentence_pieces(metadata: Mapping[str, object], vocabulary: _Vocabulary) -> _Scheme:
    scores = _numbers(metadata, "tokenizer.ggml.scores", len(vocabulary.pieces))
    byte_ids = {byte_of(piece): one for piece, one in vocabulary.bytes.items()}
    if missing := [byte for byte in range(256) if byte not in byte_ids]:
        raise BadRequest(
            f"the model's vocabulary has no piece for {len(missing)} of the 256 bytes, the first is "
            f"<0x{missing[0]:02X}>; a text that needs one could not be written",
            field="model",
        )
    encoder = SentencePieceEncoder(
        pieces=vocabulary.normal,
        scores=scores,
        byte_ids=[byte_ids[byte] for byte in range(256)],
        whole={piece.replace(SPACE, " "): one for piece, one in vocabulary.user_defined.items()},
    )
    return _Scheme(encoder, piece_bytes, piece_bytes, adds_bos=True, has_space_prefix=True)


def _read_vocabulary(metadata: Mapping[str, object]) -> _Vocabulary:
    pieces = _strings(metadata, "tokenizer.ggml.tokens")
    kinds = _numbers(metadata, "tokenizer.ggml.token_type", len(pieces))
    vocabulary = _Vocabulary(pieces, {}, {}, {}, {})
    by_kind: dict[float, dict[str, int]] = {
        _UNKNOWN: vocabulary.controls,
        _CONTROL: vocabulary.controls,
        _USER_DEFINED: vocabulary.user_defined,
        _BYTE: vocabulary.bytes,
    }
    for one, (piece, kind) in enumerate(zip(pieces, kinds, strict=True)):
        by_kind.get(_CONTROL if piece in TURN_MARKS else kind, vocabulary.normal)[piece] = one
    return vocabulary


def _token_bytes(vocabulary: _Vocabulary, scheme: _Scheme) -> Iterable[bytes]:
    for piece in vocabulary.pieces:
        if piece in vocabulary.controls:
            yield b""
        elif piece in vocabulary.user_defined:
            yield scheme.bytes_of_user_defined(piece)
        else:
            yield scheme.bytes_of(piece)


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    values = metadata.get(key)
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise BadRequest(f"the model's file has no list of strings {key}", field="model")
    return list(values)


def _numbers(metadata: Mapping[str, object], key: str, num_pieces: int) -> list[float]:
    values = metadata.get(key)
    numbers = list(values) if isinstance(values, list | tuple) else []
    if len(numbers) != num_pieces or not all(isinstance(number, int | float) for number in numbers):
        raise BadRequest(f"the model's file has {num_pieces} tokens but {len(numbers)} numbers in {key}", field="model")
    return numbers


def _optional_id(metadata: Mapping[str, object], key: str, vocabulary: _Vocabulary) -> int | None:
    value, num_pieces = metadata.get(key), len(vocabulary.pieces)
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < num_pieces:
        raise BadRequest(f"{key} is {value!r}; the model's file has {num_pieces} tokens", field="model")
    return value


def _merge(line: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    return left, right
