"""Builds the Tokenizer of a model: from GGUF metadata, from a Hugging Face folder, or for the byte model.

Never reads a GGUF file itself and never guesses: a tokenizer that it does not know is refused by name.
Called by compose.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Split

from loopwright.core.errors import BadRequest
from loopwright.text import byte_level
from loopwright.text.tokenizer import Tokenizer

TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>")
"""Control tokens that end a turn or a document in the models we know, beside the one that the model's file names."""

BYTE_MODEL_CONTROLS = {"<|bos|>": 256, "<|eos|>": 257, "<|im_start|>": 258, "<|im_end|>": 259}

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # tokenizer.ggml.token_type

_LLAMA_3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer_from_gguf(metadata: Mapping[str, object]) -> Tokenizer:
    """The tokenizer that a GGUF file describes. Knows byte-level BPE (model "gpt2") with the pre-tokenizers of
    `_pre_tokenizer`. Raises BadRequest that names what it does not know, or what is missing."""
    if (model := metadata.get("tokenizer.ggml.model")) != "gpt2":
        raise BadRequest(
            f"the model's tokenizer is {model!r}; this version knows 'gpt2' (byte-level BPE)", field="model"
        )
    pre = metadata.get("tokenizer.ggml.pre", "gpt-2")
    pieces = _strings(metadata, "tokenizer.ggml.tokens")
    kinds = _kinds(metadata, len(pieces))
    controls = {piece: one for one, piece in enumerate(pieces) if kinds[one] in (_UNKNOWN, _CONTROL)}
    backend = _byte_level_bpe(
        vocabulary={piece: one for one, piece in enumerate(pieces) if piece not in controls},
        merges=[_merge(line) for line in _strings(metadata, "tokenizer.ggml.merges")],
        pre=pre,
    )
    user_defined = {piece: one for one, piece in enumerate(pieces) if kinds[one] == _USER_DEFINED}
    backend.add_tokens([AddedToken(piece, normalized=False) for piece in user_defined])
    ends = [_optional_id(metadata, f"tokenizer.ggml.{name}_token_id", len(pieces)) for name in ("eos", "eot", "eom")]
    bos_id = _optional_id(metadata, "tokenizer.ggml.bos_token_id", len(pieces))
    return Tokenizer(
        backend=backend,
        token_bytes=_token_bytes(dict(enumerate(pieces)), controls, user_defined, len(pieces)),
        controls=controls,
        eos_ids=_end_ids(ends, controls),
        bos_id=bos_id,
        add_bos=bos_id is not None and bool(metadata.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe")),
        chat_template=str(metadata.get("tokenizer.chat_template", "")),
    )


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder: tokenizer.json, and what tokenizer_config.json, config.json,
    generation_config.json and chat_template.jinja add where they exist. Raises BadRequest that names the file."""
    backend = _read_backend(folder / "tokenizer.json")
    config, model_config = _read_json(folder / "tokenizer_config.json"), _read_json(folder / "config.json")
    added = backend.get_added_tokens_decoder()
    controls = {token.content: one for one, token in added.items() if token.special}
    plain_added = {token.content: one for one, token in added.items() if not token.special}
    pieces = {one: piece for piece, one in backend.get_vocab(with_added_tokens=True).items()}
    bos_id = controls.get(_token_text(config.get("bos_token")))
    opening = backend.encode("", add_special_tokens=True).ids[:1]  # what the post-processor puts before every text
    backend.encode_special_tokens = True  # from here on: control tokens in a text are text
    ends = [controls.get(_token_text(config.get("eos_token"))), *_generation_ends(folder)]
    tokenizer = Tokenizer(
        backend=backend,
        token_bytes=_token_bytes(pieces, controls, plain_added, _vocab_size(pieces, model_config)),
        controls=controls,
        eos_ids=_end_ids(ends, controls),
        bos_id=bos_id,
        add_bos=bos_id is not None and opening == [bos_id],
        chat_template=_folder_template(folder, config),
    )
    _check_plain_text_stays_plain(tokenizer)
    return tokenizer


def byte_tokenizer(chat_template: str = "") -> Tokenizer:
    """The byte model's tokenizer: ids 0 … 255 are bytes, then the control tokens of BYTE_MODEL_CONTROLS."""
    vocabulary = {character: byte for byte, character in byte_level.CHARACTERS.items()}
    return Tokenizer(
        backend=_byte_level_bpe(vocabulary, merges=[], pre="bytes"),
        token_bytes=(*(bytes([byte]) for byte in range(256)), *(b"" for _ in BYTE_MODEL_CONTROLS)),
        controls=BYTE_MODEL_CONTROLS,
        eos_ids=_end_ids([BYTE_MODEL_CONTROLS["<|eos|>"]], BYTE_MODEL_CONTROLS),
        bos_id=BYTE_MODEL_CONTROLS["<|bos|>"],
        add_bos=True,
        chat_template=chat_template,
    )


def _byte_level_bpe(vocabulary: dict[str, int], merges: list[tuple[str, str]], pre: object) -> Backend:
    # Control tokens are not in the vocabulary, so no text can become one.
    pre_tokenizer = _pre_tokenizer(pre)
    try:
        backend = Backend(BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    except Exception as error:  # the library raises bare Exceptions for merges outside the vocabulary
        raise BadRequest(f"the model's tokenizer is damaged: {error}", field="model") from error
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    return backend


def _pre_tokenizer(pre: object) -> PreTokenizer:
    """How text is cut before merges apply, by the names that llama.cpp gives (src/llama-vocab.cpp)."""
    match pre:
        case "smollm":
            return pre_tokenizers.Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
        case "gpt-2":
            return ByteLevel(add_prefix_space=False)
        case "llama-bpe":
            split = Split(Regex(_LLAMA_3_SPLIT), behavior="isolated")
            return pre_tokenizers.Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])
        case "bytes":
            return ByteLevel(add_prefix_space=False, use_regex=False)
        case _:
            raise BadRequest(
                f"the model's pre-tokenizer is {pre!r}; this version knows 'smollm', 'gpt-2' and 'llama-bpe'",
                field="model",
            )


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    values = metadata.get(key)
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise BadRequest(f"the model's file has no list of strings {key}", field="model")
    return list(values)


def _kinds(metadata: Mapping[str, object], num_pieces: int) -> list[int]:
    values = metadata.get("tokenizer.ggml.token_type")
    kinds = [int(kind) for kind in values] if isinstance(values, Iterable) else []
    if len(kinds) != num_pieces:
        raise BadRequest(f"the model's file has {num_pieces} tokens but {len(kinds)} token types", field="model")
    return kinds


def _optional_id(metadata: Mapping[str, object], key: str, num_pieces: int) -> int | None:
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < num_pieces:
        raise BadRequest(f"{key} is {value!r}; the model's file has {num_pieces} tokens", field="model")
    return value


def _merge(line: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    return left, right


def _token_bytes(
    pieces: Mapping[int, str], controls: Mapping[str, int], added: Mapping[str, int], vocab_size: int
) -> tuple[bytes, ...]:
    by_id = [b""] * vocab_size
    for one, piece in pieces.items():
        if piece not in controls:
            by_id[one] = piece.encode() if piece in added else byte_level.bytes_of(piece)
    return tuple(by_id)


def _end_ids(named: Iterable[int | None], controls: Mapping[str, int]) -> tuple[int, ...]:
    known = (controls.get(text) for text in TURN_ENDS)
    return tuple(dict.fromkeys(one for one in (*named, *known) if one is not None))


def _read_backend(path: Path) -> Backend:
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions for what it cannot read
        raise BadRequest(f"{path} cannot be read as a tokenizer: {error}", field="model") from error
    backend.no_truncation()
    backend.no_padding()
    if not isinstance(backend.decoder, decoders.ByteLevel):
        raise BadRequest(
            f"{path} decodes with {type(backend.decoder).__name__}; this version knows ByteLevel", field="model"
        )
    return backend


def _read_json(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BadRequest(f"{path} cannot be read: {error}", field="model") from error
    if not isinstance(value, dict):
        raise BadRequest(f"{path} holds no JSON object", field="model")
    return value


def _token_text(value: object) -> str:
    # Written as a string, or as an object with the string under "content".
    return str(value.get("content")) if isinstance(value, dict) else str(value)


def _generation_ends(folder: Path) -> list[int]:
    value = _read_json(folder / "generation_config.json").get("eos_token_id", [])
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int)]


def _vocab_size(pieces: Mapping[int, str], model_config: Mapping[str, object]) -> int:
    # A model may score more ids than its tokenizer names: they are padding.
    size = model_config.get("vocab_size")
    return max(size if isinstance(size, int) else 0, max(pieces, default=-1) + 1)


def _folder_template(folder: Path, config: Mapping[str, object]) -> str:
    separate = folder / "chat_template.jinja"
    if separate.is_file():
        return separate.read_text("utf-8")
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
