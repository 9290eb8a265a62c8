"""A small SentencePiece model, trained on the spot, and what a GGUF file and a Hugging Face folder would hold of it."""

import io
import random
from collections.abc import Sequence
from functools import cache

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

WORDS = [
    "a", "b", "the ", "then", "other", " ", "  ", "\n", "\n\n", "\t", "1", "23", "é", "ß", "你好", "日本",
    "🙂", "👩\u200d👩\u200d👧", "\u0301", "<b>", "<tag>", "<0x0A>", "'s", "?", "!?", "-", "--", "==", "Hello",
    "camelCase", "क्ष", "ไทย", "<s>", "[INST]",
]  # fmt: skip
USER_DEFINED = ("<tag>", "\n\n", "<start_of_turn>")
CONTROLS = ("<s>", "</s>", "<pad>", "[INST]", "[/INST]", "<end_of_turn>")
SPACE_STYLES = ("prepend", "first", "always", "never", "gemma")

SPACE = "▁"


def random_texts(num_texts: int, seed: int = 0, words: Sequence[str] = tuple(WORDS)) -> list[str]:
    chooser = random.Random(seed)
    return ["".join(chooser.choices(words, k=chooser.randint(1, 14))) for _ in range(num_texts)]


@cache
def train(has_space_prefix: bool = True, splits_words: bool = True) -> SentencePieceProcessor:
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter([text for text in random_texts(1500) if text.strip()]),
        model_writer=model,
        model_type="bpe",
        vocab_size=440,
        hard_vocab_limit=False,
        character_coverage=0.98,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=has_space_prefix,
        split_by_whitespace=splits_words,
        allow_whitespace_only_pieces=True,
        control_symbols=list(CONTROLS[2:]),
        user_defined_symbols=list(USER_DEFINED[:2]),
        num_threads=1,
        minloglevel=2,
    )
    return SentencePieceProcessor(model_proto=model.getvalue())


def gguf_metadata(model: SentencePieceProcessor, **changes: object) -> dict[str, object]:
    ids = range(model.get_piece_size())
    pieces = [model.id_to_piece(one) for one in ids]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tuple(pieces),
        "tokenizer.ggml.scores": tuple(model.get_score(one) for one in ids),
        "tokenizer.ggml.token_type": tuple(_kind(model, one, pieces[one]) for one in ids),
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
        **{f"tokenizer.ggml.{name}": value for name, value in changes.items()},
    }


def library(model: SentencePieceProcessor, space_style: str) -> Tokenizer:
    """The model in the form that Llama 2 ("prepend"), Mistral ("first") and Gemma have in a tokenizer.json."""
    vocabulary = {model.id_to_piece(one): one for one in range(model.get_piece_size())}
    made = Tokenizer(BPE(vocabulary, _merges(model), unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    decoding = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    match space_style:
        case "prepend":
            made.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
        case "gemma":
            made.normalizer = normalizers.Replace(" ", SPACE)
            made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        case scheme:
            made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    if space_style not in ("gemma", "never"):
        decoding.append(decoders.Strip(" ", 1, 0))
    made.decoder = decoders.Sequence(decoding)
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ("<unk>", *CONTROLS)])
    made.add_tokens([AddedToken(text, normalized=False) for text in USER_DEFINED])
    return made


def _kind(model: SentencePieceProcessor, one: int, piece: str) -> int:
    if model.is_unknown(one):
        return 2
    if model.is_control(one):
        return 3
    return 6 if model.is_byte(one) else 4 if piece in USER_DEFINED else 1


def _merges(model: SentencePieceProcessor) -> list[tuple[str, str]]:
    """Every way to put a piece together out of two, best score first: how transformers converts such a model."""
    ids = range(model.get_piece_size())
    others = [one for one in ids if model.is_control(one) or model.is_unknown(one) or model.is_byte(one)]
    plain = {model.id_to_piece(one): one for one in ids if one not in others}
    merges = []
    for piece in sorted(plain, key=lambda piece: -model.get_score(plain[piece])):
        if piece not in USER_DEFINED:
            halves = [(piece[:place], piece[place:]) for place in range(1, len(piece))]
            known = [pair for pair in halves if pair[0] in plain and pair[1] in plain]
            merges += sorted(known, key=lambda pair: (plain[pair[0]], plain[pair[1]]))
    return merges
