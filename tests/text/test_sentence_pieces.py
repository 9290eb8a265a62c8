"""SentencePiece vocabularies out of GGUF metadata: the ids of the sentencepiece library, and text that comes back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentence_piece_rig import CONTROLS, WORDS, gguf_metadata, random_texts, train

from loopwright.core.errors import BadRequest
from loopwright.text.load_tokenizer import tokenizer_from_gguf
from loopwright.text.stream import TextStream, detokenize

TEXTS = st.lists(st.sampled_from([*WORDS, "▁"]), max_size=14).map("".join)
FEW_LETTERS = st.text(st.sampled_from("aab -\n"), max_size=40)


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizer_from_gguf(gguf_metadata(train()))


@pytest.mark.parametrize("splits_words", [True, False])
@pytest.mark.parametrize("has_space_prefix", [True, False])
@given(text=TEXTS | FEW_LETTERS | st.text(max_size=20))
def test_ids_equal_those_of_sentencepiece(has_space_prefix, splits_words, text):
    model = train(has_space_prefix, splits_words)
    tokenizer = tokenizer_from_gguf(gguf_metadata(model, add_space_prefix=has_space_prefix))
    assert tokenizer.encode(text, follows="nothing") == model.encode(text)


def test_long_texts_too(tokenizer):
    for text in ("".join(random_texts(300, seed=1)), "a" * 5000, "the other " * 500):
        assert tokenizer.encode(text, follows="nothing") == train().encode(text)


def test_merges_go_by_score_then_from_the_left():
    # "aa" is worth more than "ab", and of the two places where "aa" could be, the left one is taken.
    assert pieces_of("aaab", {"aa": -1.0, "ab": -2.0}) == ["aa", "ab"]
    assert pieces_of("aaab", {"aa": -2.0, "ab": -1.0}) == ["aa", "ab"]
    assert pieces_of("aab", {"aa": -2.0, "ab": -1.0}) == ["a", "ab"]
    # What a merge makes possible competes with what is still open elsewhere.
    assert pieces_of("xyxy", {"xy": -3.0, "yx": -4.0, "xyx": -1.0}) == ["xyx", "y"]
    assert pieces_of("xyxy", {"xy": -3.0, "yx": -4.0, "xyx": -5.0}) == ["xy", "xy"]


def test_pieces_of_any_halves_merge_also_of_a_character_that_is_no_piece():
    assert pieces_of("qa", {"qa": -1.0}, letters="a") == ["qa"]


@given(text=TEXTS.filter(lambda text: "▁" not in text))
def test_text_that_follows_text_comes_back_exactly(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(first=TEXTS, second=TEXTS)
def test_streamed_text_is_the_decoded_text(tokenizer, first, second):
    ids = tokenizer.encode(first, "nothing") + tokenizer.encode(second)
    stream = TextStream(tokenizer.token_bytes)
    streamed = "".join(stream.push(one) for one in ids) + stream.finish()
    assert streamed == detokenize(tokenizer.token_bytes, ids) == tokenizer.decode(ids)


def test_a_space_stands_before_text_at_the_start_and_after_control_tokens_alone(tokenizer):
    assert tokenizer.decode(tokenizer.encode("Hello", "nothing")) == " Hello"
    assert tokenizer.decode(tokenizer.encode("Hello", "control")) == " Hello"
    assert tokenizer.decode(tokenizer.encode("Hello", "text")) == "Hello"
    assert tokenizer.decode(tokenizer.encode(" Hello", "nothing")) == "  Hello"
    assert tokenizer.encode("", "nothing") == []
    written = tokenizer.decode(tokenizer.encode_with_controls("a[INST]b</s><s>c"), skip_controls=False)
    assert written == " a[INST] b</s><s> c"


def test_a_file_may_say_that_there_is_no_space(tokenizer):
    without = tokenizer_from_gguf(gguf_metadata(train(), add_space_prefix=False))
    assert without.encode("Hello", "nothing") == tokenizer.encode("Hello", "text")


@given(text=st.lists(st.sampled_from([*WORDS, *CONTROLS, "<unk>"]), max_size=10).map("".join))
def test_plain_text_never_makes_a_control_token(tokenizer, text):
    assert tokenizer.control_ids.isdisjoint(tokenizer.encode(text))


def test_controls_ends_and_bytes_are_those_of_the_file(tokenizer):
    model = train()
    assert set(tokenizer.controls) == {"<unk>", *CONTROLS}
    assert tokenizer.eos_ids == (model.eos_id(), tokenizer.controls["<end_of_turn>"])
    assert (tokenizer.bos_id, tokenizer.add_bos) == (model.bos_id(), True)
    assert tokenizer.token_bytes[model.piece_to_id("<0x0A>")] == b"\n"
    assert tokenizer.token_bytes[model.piece_to_id("<tag>")] == b"<tag>"
    assert tokenizer.token_bytes[model.piece_to_id("▁the")] == b" the"


def test_bos_can_be_switched_off():
    assert not tokenizer_from_gguf(gguf_metadata(train(), add_bos_token=False)).add_bos


def test_what_marks_turns_is_a_control_token_whatever_the_file_calls_it():
    metadata = gguf_metadata(train())
    kinds = list(metadata["tokenizer.ggml.token_type"])
    kinds[metadata["tokenizer.ggml.tokens"].index("<end_of_turn>")] = 4
    tokenizer = tokenizer_from_gguf(metadata | {"tokenizer.ggml.token_type": tuple(kinds)})
    assert tokenizer.control_ids.isdisjoint(tokenizer.encode("<end_of_turn>"))
    assert tokenizer.controls["<end_of_turn>"] in tokenizer.eos_ids


def test_text_that_unicode_cannot_hold_is_a_bad_request(tokenizer):
    with pytest.raises(BadRequest, match="not valid Unicode"):
        tokenizer.encode("a\ud800")


def test_a_vocabulary_without_a_byte_is_refused():
    metadata = gguf_metadata(train())
    tokens = tuple("no byte" if piece == "<0x41>" else piece for piece in metadata["tokenizer.ggml.tokens"])
    kinds = list(metadata["tokenizer.ggml.token_type"])
    kinds[tokens.index("no byte")] = 1
    with pytest.raises(BadRequest, match="<0x41>"):
        tokenizer_from_gguf(metadata | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": tuple(kinds)})


def test_a_vocabulary_without_scores_is_refused():
    with pytest.raises(BadRequest, match=r"0 numbers in tokenizer\.ggml\.scores"):
        tokenizer_from_gguf(gguf_metadata(train(), scores=()))


def pieces_of(text: str, scores: dict[str, float], letters: str = "abxy") -> list[str]:
    """How a vocabulary of single letters and these pieces cuts a text."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = tokenizer_from_gguf(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": (*bytes_, *letters, *scores),
            "tokenizer.ggml.scores": (*[0.0] * 256, *[-100.0] * len(letters), *scores.values()),
            "tokenizer.ggml.token_type": (*[6] * 256, *[1] * (len(letters) + len(scores))),
        }
    )
    return [tokenizer.token_bytes[one].decode() for one in tokenizer.encode(text)]
