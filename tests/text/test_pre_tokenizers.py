"""Pre-tokenizers cut where llama.cpp and an independent regex engine cut.

`data/pre_tokenizers.json` was recorded from llama.cpp (llama-cpp-python 0.3.36) with the vocabulary of `pairs`: for
each text the bytes in each token, null where llama.cpp only approximates the model's own pattern."""

import json
from pathlib import Path

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from sentence_piece_rig import WORDS

from loopwright.text import byte_level
from loopwright.text.load_tokenizer import tokenizer_from_gguf
from loopwright.text.pre_tokenizers import CUTS, pre_tokenizer

RECORDED = json.loads((Path(__file__).parent / "data" / "pre_tokenizers.json").read_text("utf-8"))
TEXTS = st.lists(
    st.sampled_from([*WORDS, "ABC", "Été", "'LL", "'ſ", "/", "\r\n", "\u3000", "٣½", "ǅ", "$+`"]), max_size=12
)


def pairs(name: str):
    """Every byte and every pair of bytes is a token, so that a cut is seen as a pair that is not made."""
    letters = [byte_level.CHARACTERS[byte] for byte in range(256)]
    two = [(left, right) for left in letters for right in letters]
    return tokenizer_from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": name,
            "tokenizer.ggml.tokens": (*letters, *map("".join, two)),
            "tokenizer.ggml.token_type": (1,) * (len(letters) + len(two)),
            "tokenizer.ggml.merges": tuple(map(" ".join, two)),
        }
    )


def cuts(patterns: tuple[str, ...], text: str) -> list[str]:
    """What each pattern finds is a part, and what is between two finds."""
    parts = [text]
    for pattern in patterns:
        parts = [piece for part in parts for piece in regex.split(f"({pattern})", part) if piece]
    return parts


@pytest.mark.parametrize("name", RECORDED["lengths"])
def test_every_text_is_cut_as_llama_cpp_cuts_it(name):
    tokenizer = pairs(name)
    wrong = [
        text
        for text, lengths in zip(RECORDED["texts"], RECORDED["lengths"][name], strict=True)
        if lengths is not None
        and "".join(str(len(tokenizer.token_bytes[one])) for one in tokenizer.encode(text)) != lengths
    ]
    assert wrong == []


@pytest.mark.parametrize("name", CUTS)
@given(words=TEXTS)
def test_every_pattern_means_the_same_to_another_engine(name, words):
    text = "".join(words)
    parts = pre_tokenizer(CUTS[name]).pre_tokenize_str(text)
    assert [byte_level.bytes_of(part).decode() for part, _ in parts] == cuts(CUTS[name].patterns, text)


def test_capital_letters_beyond_ascii_begin_a_word_in_tekken():
    # Here llama.cpp keeps "écoleÉté" together; the model's own tokenizer does not.
    assert cuts(CUTS["tekken"].patterns, "écoleÉté") == ["école", "Été"]
    parts = pre_tokenizer(CUTS["tekken"]).pre_tokenize_str("écoleÉté")
    assert [byte_level.bytes_of(part).decode() for part, _ in parts] == ["école", "Été"]


@pytest.mark.parametrize(("name", "adds_bos"), [("llama3", True), ("tekken", True), ("qwen2", False), ("gpt-2", False)])
def test_a_file_that_does_not_speak_of_bos_means_what_its_family_does(name, adds_bos):
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": ("a", "<s>"),
        "tokenizer.ggml.token_type": (1, 3),
        "tokenizer.ggml.merges": (),
        "tokenizer.ggml.bos_token_id": 1,
    }
    assert tokenizer_from_gguf(metadata).add_bos == adds_bos
    assert not tokenizer_from_gguf(metadata | {"tokenizer.ggml.add_bos_token": False}).add_bos
