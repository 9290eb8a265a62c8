"""Gemma's own vocabulary of a quarter of a million pieces. On request only, because its weights have their own terms:

    LOOPWRIGHT_TEST_GEMMA_GGUF=/path/to/gemma-3-270m.gguf pytest -m gemma

Any GGUF file of Gemma 3 will do. The ids were recorded from llama.cpp (llama-cpp-python 0.3.36)."""

import os
from pathlib import Path

import pytest
from sentence_piece_rig import random_texts

from loopwright.text.load_tokenizer import tokenizer_from_gguf
from loopwright.text.tokenizer import Tokenizer
from loopwright.weights.gguf import read_gguf

PATH = os.environ.get("LOOPWRIGHT_TEST_GEMMA_GGUF", "")
pytestmark = [
    pytest.mark.gemma,
    pytest.mark.skipif(not PATH, reason="LOOPWRIGHT_TEST_GEMMA_GGUF names no file"),
]

RECORDED = {
    "Hello  world": [9259, 138, 12392],
    "\n\n\n  x\t\ty": [109, 138, 236781, 255969, 236762],
    "don't 12345 ½": [13246, 236789, 236745, 236743, 236770, 236778, 236800, 236812, 236810, 47041],
    "日本語テキスト 🙂🙃 naïve café": [94951, 95830, 57235, 244499, 120362, 33443],
    "<end_of_turn><b>x</b><0x41>": [
        236820,
        643,
        236779,
        1340,
        236779,
        887,
        236813,
        200,
        236781,
        209,
        236820,
        236771,
        236781,
        236812,
        236770,
        236813,
    ],
    "١٢٣ क्ष ไทย ́": [240929, 241303, 242044, 9251, 127604, 222461],
    "    def f(x):\n        return x": [140, 2063, 517, 236769, 236781, 1473, 107, 144, 2060, 1123],
}


@pytest.fixture(scope="module")
def gemma() -> Tokenizer:
    return tokenizer_from_gguf(read_gguf(Path(PATH)).metadata)


@pytest.mark.parametrize("text", RECORDED)
def test_ids_equal_those_of_llama_cpp(gemma, text):
    assert gemma.encode(text, "nothing") == RECORDED[text]


def test_text_comes_back(gemma):
    for text in (*RECORDED, *random_texts(500)):
        assert gemma.decode(gemma.encode(text)) == text


def test_a_turn_ends_with_its_own_token_and_no_text_can_write_one(gemma):
    assert gemma.eos_ids == (gemma.controls["<eos>"], gemma.controls["<end_of_turn>"])
    assert (gemma.control_text(gemma.bos_id), gemma.add_bos) == ("<bos>", True)
    for text in gemma.controls:
        assert gemma.control_ids.isdisjoint(gemma.encode(text))


def test_control_tokens_of_trusted_text_are_found_among_thousands(gemma):
    ids = gemma.encode_with_controls("<start_of_turn>user\nHi<end_of_turn>\n")
    assert [gemma.control_text(one) for one in ids if one in gemma.control_ids] == ["<start_of_turn>", "<end_of_turn>"]
