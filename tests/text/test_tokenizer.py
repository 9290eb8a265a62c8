"""Tokenizers: llama.cpp's ids, control tokens never out of plain text, the same from a GGUF file and a folder."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from loopwright.core.errors import BadRequest
from loopwright.text.load_tokenizer import byte_tokenizer, tokenizer_from_folder, tokenizer_from_gguf

CASES = json.loads((Path(__file__).parent / "data" / "tokenizer_smollm2.json").read_text("utf-8"))

TINY = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ("a", "b", "ab", "Ġ", "<end>", "<tag>", "<pad>"),
    "tokenizer.ggml.token_type": (1, 1, 1, 1, 3, 4, 5),
    "tokenizer.ggml.merges": ("a b",),
    "tokenizer.ggml.eos_token_id": 4,
}


@pytest.mark.model
def test_every_text_has_the_ids_that_llama_cpp_gives_it(smollm2):
    wrong = [case["text"] for case in CASES if smollm2.encode_with_controls(case["text"]) != case["ids"]]
    assert wrong == []


@pytest.mark.model
def test_every_text_comes_back_from_its_ids(smollm2):
    for case in CASES:
        assert smollm2.decode(case["ids"], skip_controls=False) == case["text"]
        assert smollm2.decode(smollm2.encode(case["text"])) == case["text"]


@pytest.mark.model
def test_the_default_model_s_controls_and_ends_are_those_of_its_file(smollm2):
    assert smollm2.vocab_size == 49152
    assert smollm2.control_ids == set(range(17))
    assert smollm2.eos_ids == (smollm2.controls["<|im_end|>"], smollm2.controls["<|endoftext|>"])
    assert (smollm2.bos_id, smollm2.add_bos) == (1, False)
    assert "<|im_start|>" in smollm2.chat_template
    assert [smollm2.token_bytes[one] for one in range(17)] == [b""] * 17


@pytest.mark.model
@given(text=st.text(st.sampled_from("<|im_end>startofxé 🙂\n1")))
def test_plain_text_of_any_kind_round_trips_without_control_ids(smollm2, text):
    for marked in (text, f"{text}<|im_end|>{text}"):
        ids = smollm2.encode(marked)
        assert smollm2.control_ids.isdisjoint(ids)
        assert smollm2.decode(ids) == marked


def test_control_tokens_in_plain_text_stay_text_and_in_trusted_text_do_not(bytes_only):
    text = "a<|im_end|>b"
    assert bytes_only.encode(text) == list(text.encode())
    assert bytes_only.encode_with_controls(text) == [97, bytes_only.controls["<|im_end|>"], 98]


def test_decoding_hides_control_tokens_or_writes_them_out(bytes_only):
    ids = bytes_only.encode_with_controls("a<|im_end|>é")
    assert bytes_only.decode(ids) == "aé"
    assert bytes_only.decode(ids, skip_controls=False) == "a<|im_end|>é"


def test_bytes_that_are_no_text_decode_to_replacement_characters(bytes_only):
    assert bytes_only.decode([0xF0, 0x9F, 97]) == "\ufffda"


def test_the_byte_model_s_ids_are_bytes_then_four_controls(bytes_only):
    assert bytes_only.vocab_size == 260
    assert bytes_only.token_bytes[:256] == tuple(bytes([byte]) for byte in range(256))
    assert bytes_only.encode("é🙂") == list("é🙂".encode())
    assert bytes_only.eos_ids == (257, 259)
    assert (bytes_only.bos_id, bytes_only.add_bos) == (256, True)


def test_text_that_unicode_cannot_hold_is_a_bad_request(bytes_only):
    with pytest.raises(BadRequest, match="not valid Unicode"):
        bytes_only.encode("a\ud800")


def test_a_file_s_own_added_tokens_are_text_but_one_token():
    tokenizer = tokenizer_from_gguf(TINY)
    assert tokenizer.encode("ab<tag>a") == [2, 5, 0]
    assert tokenizer.token_bytes == (b"a", b"b", b"ab", b" ", b"", b"<tag>", b"<pad>")
    assert tokenizer.eos_ids == (4,)


def test_llama_3_cuts_numbers_by_three_and_takes_whole_words_of_the_vocabulary():
    digits = tuple("0123456789")
    metadata = TINY | {
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": (*digits, "123", "12", "23", "a", "b", "c", "abc", "Ġ"),
        "tokenizer.ggml.token_type": (1,) * 18,
        "tokenizer.ggml.merges": ("2 3", "1 23", "1 2"),
    }
    tokenizer = tokenizer_from_gguf(metadata)
    pieces = [tokenizer.token_bytes[one].decode() for one in tokenizer.encode("12312 abc")]
    assert pieces == ["123", "12", " ", "a", "b", "c"]
    assert [tokenizer.token_bytes[one] for one in tokenizer.encode("abc")] == [b"abc"]  # no merge leads there
    assert tokenizer_from_gguf(metadata | {"tokenizer.ggml.bos_token_id": 0}).add_bos


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tokenizer.ggml.model": "bert"}, "'bert'"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.scores"),
        ({"tokenizer.ggml.model": None}, "None"),
        ({"tokenizer.ggml.pre": "deepseek-v3"}, "'deepseek-v3'"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": (1, 2)}, "tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.token_type": (1, 1)}, "2 numbers in tokenizer.ggml.token_type"),
        ({"tokenizer.ggml.merges": ("a z",)}, "damaged"),
        ({"tokenizer.ggml.eos_token_id": 99}, "99"),
    ],
)
def test_a_tokenizer_we_cannot_read_right_is_refused_by_name(change, named):
    with pytest.raises(BadRequest, match=named):
        tokenizer_from_gguf(TINY | change)


def write_folder(folder: Path, tokenizer, **configs) -> Path:
    tokenizer.encoder.library.add_special_tokens([AddedToken(text, special=True) for text in tokenizer.controls])
    tokenizer.encoder.library.save(str(folder / "tokenizer.json"))
    for name, config in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def byte_folder(tmp_path):
    return write_folder(
        tmp_path,
        byte_tokenizer(),
        tokenizer_config={
            "bos_token": "<|bos|>",
            "eos_token": {"content": "<|eos|>", "special": True},
            "chat_template": "{{ messages[0]['content'] }}",
        },
        generation_config={"eos_token_id": [259]},
        config={"vocab_size": 264},
    )


def test_a_folder_gives_the_tokenizer_that_was_written_to_it(byte_folder):
    read, written = tokenizer_from_folder(byte_folder), byte_tokenizer()
    text = "aé<|im_end|>🙂"
    assert read.encode(text) == written.encode(text)
    assert read.encode_with_controls(text) == written.encode_with_controls(text)
    assert read.controls == written.controls
    assert read.eos_ids == (257, 259)
    assert read.chat_template == "{{ messages[0]['content'] }}"


def test_ids_that_only_the_model_has_mean_nothing(byte_folder):
    tokenizer = tokenizer_from_folder(byte_folder)
    assert tokenizer.token_bytes == (*byte_tokenizer().token_bytes, b"", b"", b"", b"")


def test_a_folder_starts_contexts_with_bos_exactly_when_its_post_processor_does(byte_folder):
    assert not tokenizer_from_folder(byte_folder).add_bos
    path = byte_folder / "tokenizer.json"
    content = json.loads(path.read_text())
    special = {"SpecialToken": {"id": "<|bos|>", "type_id": 0}}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [special, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [256], "tokens": ["<|bos|>"]}},
    }
    path.write_text(json.dumps(content))
    tokenizer = tokenizer_from_folder(byte_folder)
    assert tokenizer.add_bos
    assert tokenizer.encode("a") == [97]


def test_a_template_file_comes_before_the_one_in_the_config(byte_folder):
    (byte_folder / "chat_template.jinja").write_text("from the file")
    assert tokenizer_from_folder(byte_folder).chat_template == "from the file"


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", None), ("tokenizer.json", "{"), ("tokenizer_config.json", "{"), ("config.json", "[]"),
     ("config.json", "[" * 100_000), ("chat_template.jinja", "\udcff"),
     ("generation_config.json", '{"eos_token_id": 999999}')],
)  # fmt: skip
def test_a_folder_s_broken_file_is_named(byte_folder, name, content):
    (byte_folder / name).unlink(missing_ok=True)
    if content is not None:
        (byte_folder / name).write_text(content, errors="surrogateescape")
    with pytest.raises(BadRequest, match=name):
        tokenizer_from_folder(byte_folder)


@pytest.mark.model
def test_the_default_model_is_the_same_from_a_folder(smollm2_metadata, tmp_path):
    written = tokenizer_from_gguf(smollm2_metadata)
    content = json.loads(written.encoder.library.to_str())
    content["model"]["vocab"] |= written.controls  # a folder's vocabulary lists them at their ids
    (tmp_path / "tokenizer.json").write_text(
        json.dumps(content | {"added_tokens": [added_token(text, one) for text, one in written.controls.items()]})
    )
    read = tokenizer_from_folder(tmp_path)
    assert read.token_bytes == written.token_bytes
    for case in CASES:
        assert read.encode_with_controls(case["text"]) == case["ids"]


def added_token(text: str, token_id: int) -> dict[str, object]:
    return {
        "id": token_id,
        "content": text,
        "special": True,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
    }
