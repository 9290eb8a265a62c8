"""Hugging Face folders of SentencePiece's kind: the ids of transformers, and text that comes back."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentence_piece_rig import CONTROLS, SPACE_STYLES, USER_DEFINED, WORDS, library, train
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from loopwright.core.errors import BadRequest
from loopwright.text.load_tokenizer import tokenizer_from_folder
from loopwright.text.stream import detokenize

# Where a space prefix follows a token of USER_DEFINED, we go by sentencepiece and not by transformers: ADR 6.
PLAIN = [word for word in WORDS if word not in USER_DEFINED]
NOTHING_USER_DEFINED = re.compile(f"(?!.*({'|'.join(USER_DEFINED)}))", re.DOTALL)
TEXTS = st.lists(st.sampled_from(PLAIN), max_size=14).map("".join).filter(NOTHING_USER_DEFINED.match)
MARKED = (
    st.lists(st.sampled_from([*PLAIN, *CONTROLS, "<unk>"]), max_size=14).map("".join).filter(NOTHING_USER_DEFINED.match)
)


def write(folder: Path, made: Tokenizer, **config: object) -> Path:
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module", params=SPACE_STYLES)
def both(request, tmp_path_factory):
    """Our tokenizer and transformers', of the same folder."""
    folder = write(
        tmp_path_factory.mktemp(request.param), library(train(), request.param), bos_token="<s>", eos_token="</s>"
    )
    return tokenizer_from_folder(folder), PreTrainedTokenizerFast.from_pretrained(folder)


@given(text=MARKED | st.text(max_size=20))
def test_ids_equal_those_of_transformers(both, text):
    ours, theirs = both
    assert ours.encode_with_controls(text) == theirs.encode(text, add_special_tokens=False)


@given(text=TEXTS)
def test_decoded_text_is_that_of_transformers_with_the_first_space(both, text):
    ours, theirs = both
    ids = ours.encode(text, "nothing")
    decoded = ours.decode(ids).removeprefix(" ") if ours.space_after else ours.decode(ids)
    assert decoded == theirs.decode(ids, clean_up_tokenization_spaces=False)


@given(text=st.lists(st.sampled_from(WORDS), max_size=14).map("".join))
def test_text_that_follows_text_comes_back_exactly(both, text):
    ours, _ = both
    ids = ours.encode(text)
    assert ours.decode(ids) == detokenize(ours.token_bytes, ids) == text


@given(text=st.lists(st.sampled_from([*WORDS, *CONTROLS]), max_size=10).map("".join))
def test_plain_text_never_makes_a_control_token(both, text):
    ours, _ = both
    assert ours.control_ids.isdisjoint(ours.encode(text))
    assert ours.control_ids.isdisjoint(ours.encode(text, "nothing"))


def test_controls_ends_and_bytes_are_those_of_the_folder(both):
    ours, theirs = both
    assert set(ours.controls) == {"<unk>", *CONTROLS, "<start_of_turn>"}  # the last is a mark of turns, if not special
    assert ours.eos_ids == (theirs.eos_token_id, ours.controls["<end_of_turn>"])
    assert ours.bos_id == theirs.bos_token_id
    assert ours.token_bytes[theirs.convert_tokens_to_ids("<0xE2>")] == b"\xe2"
    assert ours.token_bytes[theirs.convert_tokens_to_ids("<tag>")] == b"<tag>"


@pytest.mark.parametrize(
    ("style", "written"), [("prepend", "  a"), ("always", " a"), ("first", " a"), ("never", " a"), ("gemma", " a")]
)
def test_a_text_with_a_space_of_its_own_gets_a_second_one_only_by_prepend(tmp_path, style, written):
    tokenizer = tokenizer_from_folder(write(tmp_path, library(train(), style)))
    assert tokenizer.decode(tokenizer.encode(" a", "nothing")) == written
    assert tokenizer.decode(tokenizer.encode(" a", "control")) == written


@pytest.mark.parametrize(
    ("style", "spaced"),
    [
        ("prepend", " a[INST] b"),
        ("always", " a[INST] b"),
        ("first", " a[INST]b"),
        ("never", "a[INST]b"),
        ("gemma", "a[INST]b"),
    ],
)
def test_each_style_has_its_own_places_for_a_space(tmp_path, style, spaced):
    tokenizer = tokenizer_from_folder(write(tmp_path, library(train(), style)))
    assert tokenizer.decode(tokenizer.encode_with_controls("a[INST]b"), skip_controls=False) == spaced


def test_control_tokens_that_swallow_white_space_do(tmp_path):
    made = library(train(), "never")
    made.add_special_tokens(
        [
            AddedToken("<left>", special=True, normalized=False, lstrip=True),
            AddedToken("<right>", special=True, normalized=False, rstrip=True),
        ]
    )
    ours = tokenizer_from_folder(write(tmp_path, made))
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for text in ("a \n<left> b", "a <right> \n b", "a <right> <left> b", " <left>", "<right> ", "a<left>b<right>c"):
        assert ours.encode_with_controls(text) == theirs.encode(text, add_special_tokens=False)


def test_a_byte_level_folder_that_puts_a_space_first_keeps_doing_so(tmp_path):
    vocabulary = {character: one for one, character in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    ours = tokenizer_from_folder(write(tmp_path, made))
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for text in ("a", " a", "a<s>b", "<s> b"):
        assert ours.encode_with_controls(text) == theirs.encode(text, add_special_tokens=False)
    assert ours.decode(ours.encode("a")) == "a"


def strange_decoder(made):
    made.decoder = decoders.WordPiece()


def strange_replacement(made):
    made.decoder = decoders.Sequence([decoders.Replace("_", " "), decoders.ByteFallback()])


def no_decoder(made):
    made.decoder = decoders.Sequence([])


def no_fallback(made):
    made.model.byte_fallback = False


def strange_prefix(made):
    made.normalizer = normalizers.Prepend("x")


def single_word(made):
    made.add_special_tokens([AddedToken("<word>", special=True, normalized=False, single_word=True)])


@pytest.mark.parametrize(
    ("break_it", "named"),
    [
        (strange_decoder, "WordPiece"),
        (strange_replacement, "Replace, ByteFallback"),
        (no_decoder, "nothing"),
        (no_fallback, "no bytes to fall back to"),
        (strange_prefix, "'x'"),
        (single_word, "'<word>' has single_word"),
    ],
)
def test_a_folder_we_cannot_read_right_is_refused_by_name(tmp_path, break_it, named):
    made = library(train(), "never")
    break_it(made)
    with pytest.raises(BadRequest, match=named):
        tokenizer_from_folder(write(tmp_path, made))


@pytest.mark.parametrize("model", [models.Unigram([("a", 0.0)], unk_id=0), models.WordPiece({"a": 0}, unk_token="a")])
def test_a_model_that_is_not_bpe_is_refused_by_name(tmp_path, model):
    with pytest.raises(BadRequest, match=type(model).__name__):
        tokenizer_from_folder(write(tmp_path, Tokenizer(model)))
