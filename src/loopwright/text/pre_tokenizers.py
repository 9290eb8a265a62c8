"""How a byte-level BPE model cuts text before merges apply, by the names that GGUF files give (tokenizer.ggml.pre).

Never guesses: a name that is not here is refused. Called by the functions that load tokenizers.

The patterns are those of the models' own tokenizer.json files, which src/llama-vocab.cpp of llama.cpp lists under
these names. Where llama.cpp cuts by an approximation of its own (letters beyond ASCII in 'tekken' and 'gpt-4o'), we
follow the model's file.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Split

from loopwright.core.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Cut:
    """Patterns that apply one after the other: what a pattern finds is a part, what is between two finds another."""

    patterns: tuple[str, ...]
    takes_whole_words: bool = False  # a part that is a token is that token, whether or not merges lead there
    adds_bos: bool = False  # what holds when the file does not say whether contexts start with BOS


_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION_AND_SPACES = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased(ending: str, numbers: str) -> str:
    """Words end where an upper-case letter follows a lower-case one."""
    start = r"[^\r\n\p{L}\p{N}]?"
    words = f"{start}{_UPPER}*{_LOWER}+{ending}|{start}{_UPPER}+{_LOWER}*{ending}"
    return rf"{words}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA_3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}{_PUNCTUATION_AND_SPACES}"
_QWEN_2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{_PUNCTUATION_AND_SPACES}"

_plain = Cut((_GPT_2,))
_digits = Cut((r"\p{N}", _GPT_2))
_llama_3 = Cut((_LLAMA_3,), takes_whole_words=True, adds_bos=True)
_qwen_2 = Cut((_QWEN_2,))

CUTS: Mapping[str, Cut] = {
    "default": Cut((r"[\p{P}\$\+<=>\^~\|]+", _GPT_2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _plain,
    "mellum": _plain,
    "smollm": _digits,
    "minerva-7b": _digits,
    "refact": _digits,
    "starcoder": _digits,
    "llama-bpe": _llama_3,
    "llama3": _llama_3,
    "llama-v3": _llama_3,
    "falcon3": _llama_3,
    "pixtral": _llama_3,
    "smaug-bpe": Cut((_LLAMA_3,)),
    "qwen2": _qwen_2,
    "deepseek-r1-qwen": _qwen_2,
    "megrez": _qwen_2,
    "tekken": Cut((_cased("", r"\p{N}"),), takes_whole_words=True, adds_bos=True),
    "gpt-4o": Cut((_cased(f"{_CONTRACTION}?", r"\p{N}{1,3}"),)),
}


def cut_named(name: object) -> Cut:
    """Raises BadRequest that names a cut we do not know."""
    cut = CUTS.get(name) if isinstance(name, str) else None
    if cut is None:
        raise BadRequest(
            f"the model's pre-tokenizer is {name!r}; this version knows {', '.join(CUTS)}",
            hint="a folder with tokenizer.json says by itself how it cuts",
            field="model",
        )
    return cut


def pre_tokenizer(cut: Cut) -> PreTokenizer:
    """The library's form of a cut; its parts are written in the byte-level alphabet."""
    splits = [Split(Regex(pattern), behavior="isolated") for pattern in cut.patterns]
    return pre_tokenizers.Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])
