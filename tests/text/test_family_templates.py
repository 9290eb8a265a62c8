"""Chat templates in the style of each family of models: the ids of transformers, one BOS, and no control token out of
what people write. The templates are ours; they do what those of the families do."""

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentence_piece_rig import CONTROLS, gguf_metadata, library, train
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from loopwright.core.clock import FakeClock
from loopwright.text.chat_template import ChatTemplate
from loopwright.text.load_tokenizer import tokenizer_from_folder, tokenizer_from_gguf

TALK = [
    {"role": "user", "content": "Héllo 🙂\n"},
    {"role": "assistant", "content": " Hi."},
    {"role": "user", "content": "1234 and  two"},
    {"role": "assistant", "content": "ok"},
]

CHATML = """{%- if messages[0].role != 'system' -%}
    {{- '<|im_start|>system\\nBe of use.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {%- if message.role == 'assistant' -%}
        {% generation %}{{- message.content + '<|im_end|>' -}}{% endgeneration %}
    {%- else -%}
        {{- message.content + '<|im_end|>' -}}
    {%- endif -%}
    {{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

LLAMA_3 = """{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = '26 Jul 2024' %}{% endif %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}"""

LLAMA_2 = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}
{% else %}{% set loop_messages = messages %}{% endif %}
{% for message in loop_messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must take turns') }}{% endif %}
{% if message['role'] == 'user' %}{{ bos_token + '((INST)) ' + message['content'].strip() + ' ((/INST))' }}
{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endif %}
{% endfor %}"""

MISTRAL = """{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.role == 'assistant' %}{{- ' ' + message.content|trim + eos_token }}
    {%- else %}{{- raise_exception('only user and assistant') }}{%- endif %}
{%- endfor %}"""

GEMMA = """{{ bos_token }}{% for message in messages %}
{% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""


@dataclass(frozen=True)
class Family:
    """A template, and what makes its tokenizer: a SentencePiece space style, or byte-level control tokens."""

    template: str
    eos: str
    space_style: str = ""
    bos: str = "<s>"
    byte_level_controls: tuple[str, ...] = ()
    num_user_controls: int = 2  # that a user's message brings along
    num_assistant_controls: int = 2
    num_chat_controls: int = 1  # that stand before all messages


FAMILIES = {
    "qwen": Family(
        CHATML, "<|im_end|>", bos="", byte_level_controls=("<|im_start|>", "<|im_end|>"), num_chat_controls=2
    ),
    "llama-3": Family(
        LLAMA_3,
        "<|eot_id|>",
        bos="<|begin|>",
        byte_level_controls=("<|begin|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        num_user_controls=3,
        num_assistant_controls=3,
    ),
    "llama-2": Family(LLAMA_2, "</s>", "prepend", num_user_controls=1, num_assistant_controls=1, num_chat_controls=0),
    "mistral": Family(MISTRAL, "</s>", "first", num_assistant_controls=1),
    "gemma": Family(GEMMA, "<end_of_turn>", "gemma"),
}


def byte_level_library(controls: tuple[str, ...]) -> Tokenizer:
    vocabulary = {character: one for one, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in controls])
    return made


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """The family, our template over its folder, and transformers' tokenizer of the same folder."""
    one = FAMILIES[request.param]
    made = library(train(), one.space_style) if one.space_style else byte_level_library(one.byte_level_controls)
    config = {"eos_token": one.eos, "chat_template": one.template}
    if one.bos:
        config["bos_token"] = one.bos
        made.post_processor = processors.TemplateProcessing(
            single=f"{one.bos} $A", special_tokens=[(one.bos, made.token_to_id(one.bos))]
        )
    folder = tmp_path_factory.mktemp(request.param)
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = tokenizer_from_folder(folder)
    assert tokenizer.add_bos == bool(one.bos)
    template = ChatTemplate(tokenizer.chat_template, tokenizer, FakeClock())
    return one, tokenizer, template, PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("add_generation_prompt", [False, True])
def test_ids_equal_those_of_transformers(family, size, add_generation_prompt):
    one, tokenizer, template, theirs = family
    ids = template.render(TALK[:size], add_generation_prompt)
    assert ids == theirs.apply_chat_template(
        TALK[:size], add_generation_prompt=add_generation_prompt, return_dict=False
    )
    if one.bos:
        assert ids[0] == tokenizer.bos_id
        assert ids[1] != tokenizer.bos_id


CONTENT = st.lists(
    st.sampled_from(
        ["a", " ", "\n", "🙂", "Hello", "<tag>", *CONTROLS, "<unk>", "<start_of_turn>", "<|im_end|>", "<|im_start|>",
         "<|eot_id|>", "<|start_header_id|>", "<|begin|>"]
    ),
    max_size=8,
).map("".join)  # fmt: skip


@given(contents=st.lists(CONTENT, min_size=1, max_size=4))
def test_whatever_people_write_only_the_template_makes_control_tokens(family, contents):
    one, tokenizer, template, _ = family
    messages = [{**said, "content": content} for said, content in zip(TALK, contents, strict=False)]
    ids = template.render(messages, add_generation_prompt=False)
    by_role = {"user": one.num_user_controls, "assistant": one.num_assistant_controls}
    expected = one.num_chat_controls + sum(by_role[message["role"]] for message in messages)
    assert sum(token in tokenizer.control_ids for token in ids) == expected


def test_a_chat_is_continued_after_a_control_token_as_if_it_were_rendered_whole(family):
    _, _, template, _ = family
    for num_done in (1, 2, 3):
        done = template.render(TALK[:num_done], add_generation_prompt=False)
        delta = template.render_delta(TALK, num_done, is_open=False, add_generation_prompt=False)
        assert done + delta == template.render(TALK, add_generation_prompt=False)


def test_an_open_answer_is_closed_by_what_the_template_writes(family):
    _, tokenizer, template, _ = family
    closing = template.render_delta(TALK[:2], 2, is_open=True, add_generation_prompt=False)
    whole = template.render(TALK[:2], add_generation_prompt=False)
    assert whole[-len(closing) :] == closing
    assert tokenizer.control_ids.intersection(closing)


@pytest.mark.parametrize(("name", "has_space_prefix"), [("llama-2", True), ("gemma", False)])
def test_a_gguf_file_renders_as_the_folder_of_the_same_model(tmp_path, name, has_space_prefix):
    one = FAMILIES[name]
    library(train(), one.space_style).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": one.bos, "eos_token": one.eos}))
    metadata = gguf_metadata(train(), add_space_prefix=has_space_prefix)
    more = {"tokens": "<start_of_turn>", "scores": -1000.0, "token_type": 3}  # a folder adds it behind the others
    metadata |= {f"tokenizer.ggml.{key}": (*metadata[f"tokenizer.ggml.{key}"], value) for key, value in more.items()}
    metadata["tokenizer.ggml.eos_token_id"] = metadata["tokenizer.ggml.tokens"].index(one.eos)

    of_folder, of_file = (
        ChatTemplate(one.template, tokenizer, FakeClock()).render(TALK[:3], add_generation_prompt=True)
        for tokenizer in (tokenizer_from_folder(tmp_path), tokenizer_from_gguf(metadata))
    )
    assert of_file == of_folder


@pytest.mark.parametrize("style", ["prepend", "first"])
def test_text_that_continues_after_a_control_token_has_the_space_that_the_whole_chat_has_there(tmp_path, style):
    library(train(), style).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    tokenizer = tokenizer_from_folder(tmp_path)
    source = "{% for message in messages %}{{ message.content + eos_token }}{% endfor %}"
    template = ChatTemplate(source, tokenizer, FakeClock())
    done = template.render(TALK[:1], add_generation_prompt=False)
    delta = template.render_delta(TALK[:3], 1, is_open=False, add_generation_prompt=False)
    assert done + delta == template.render(TALK[:3], add_generation_prompt=False)
    assert tokenizer.decode(delta).startswith("  Hi." if style == "prepend" else " Hi.")
