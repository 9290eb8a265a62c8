"""lm-eval's `local-completions` with a task of its own: log-likelihoods of echoed token ids, and generation."""

import json
import math
from pathlib import Path

import pytest
import tokenizers
import transformers
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from tokenizers import decoders, models, pre_tokenizers

from conftest import KEY, Server

CHOICES = """task: say_choice
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
output_type: multiple_choice
test_split: test
doc_to_text: "user\\nSay: {{answer}}\\nassistant\\n"
doc_to_choice: choices
doc_to_target: 0
target_delimiter: ""
metric_list: [{metric: acc}]
"""
GENERATION = """task: say_generate
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
output_type: generate_until
test_split: test
doc_to_text: "user\\nSay: {{answer}}\\nassistant\\n"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 40}
metric_list: [{metric: exact_match}]
"""
LOGIT = 10.0  # of the scripted token; every other of 260 has 0
SURPRISE = -math.log(math.exp(LOGIT) + 259)  # log-probability of another: the line's end, which lm-eval scores too
ANSWERS = [("yes", "no"), ("Zürich", "Oslo"), ("forty-two", "forty-three"), ("a b c", "a b d")]


@pytest.fixture
def byte_tokenizer(tmp_path: Path) -> Path:
    """A tokenizer whose ids are bytes, as the scripted model's are."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {written: decoders.ByteLevel().decode([written]) for written in alphabet}
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = [chr(one) for one in printable] + [chr(256 + number) for number in range(256 - len(printable))]
    rest = [one for one in range(256) if one not in printable]
    vocabulary = dict(zip(order, [*printable, *rest], strict=True))
    assert vocabulary.keys() == ids.keys()
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    folder = tmp_path / "tokenizer"
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=chr(0x143)).save_pretrained(folder)
    return folder


def test_a_local_task_is_scored_as_the_script_says(
    server: Server, tmp_path: Path, byte_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"answer": one, "choices": [one, other]}) + "\n" for one, other in ANSWERS))
    for name, text in (("choice", CHOICES), ("generate", GENERATION)):
        (tmp_path / f"{name}.yaml").write_text(text.replace("FILE", str(rows)))
    options = f"model={server.model},base_url={server.v1}/completions,tokenizer={byte_tokenizer},num_concurrent=2"
    found = simple_evaluate(
        model="local-completions",
        model_args=options,
        tasks=["say_choice", "say_generate"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
    )
    assert found["results"]["say_choice"]["acc,none"] == 1.0
    assert found["results"]["say_generate"]["exact_match,none"] == 1.0
    for sample, (answer, _) in zip(found["samples"]["say_choice"], ANSWERS, strict=True):
        (right, _), (wrong, _) = sample["filtered_resps"]
        assert right == pytest.approx(SURPRISE + (SURPRISE + LOGIT) * len(answer.encode()), abs=1e-3)
        assert right > wrong + LOGIT / 2
