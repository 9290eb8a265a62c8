"""Programs that decode in their own way, each against its definition, computed from the one-request loop's logits."""

import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from script_rig import emitted, outcome_of
from transformers import AutoModelForCausalLM

from loopwright.engine.byte_model import BYTE_TOKENS, byte_model
from loopwright.engine.model_files import write_hf_folder
from loopwright.engine.scripted import NextToken, ScriptedExecutor
from loopwright.text.stream import detokenize
from system_rig import Outcome, System, byte_oracle, byte_system, byte_text, in_loop, system_over

TEXT = "Once upon a time"
END = 257, 259  # of a text and of a turn


@pytest.fixture(autouse=True)
def of_no_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script's steps say nothing of what drafts cost, however busy this machine is."""
    monkeypatch.setattr("loopwright.control.step_times.MIN_STEP_S", math.inf)


async def run(system: System, name: str, **arguments: Any) -> Outcome:
    return await outcome_of(system, name, **arguments)


async def counts(name: str, next_token: NextToken, **arguments: Any) -> dict[str, Any]:
    """What the program counted at its end, beside a model that says what `next_token` says."""
    engine = ScriptedExecutor(next_token)
    try:
        async with system_over(engine, byte_text(engine)) as system:
            return emitted(await run(system, name, **arguments))[-1]
    finally:
        engine.close()


def never_again(history: tuple[int, ...]) -> int:
    """A letter has stood before, so there are guesses, and what follows it is another one each time."""
    return 97 + random.Random(len(history)).randrange(26)


def of_all_before(history: tuple[int, ...]) -> int:
    """A letter that is another one as soon as any letter before it is."""
    return 97 + random.Random(repr(history)).randrange(26)


def logprobs_after(tokens: list[int]) -> np.ndarray:
    """Of the token that follows, by id."""
    logits = byte_oracle().logits(tokens)[-1]
    return torch.as_tensor(np.asarray(logits)).double().log_softmax(-1).numpy()


def greedy(tokens: list[int], num_tokens: int) -> list[int]:
    return list(byte_oracle().generate(tokens, max_tokens=num_tokens).tokens)


def text_of(tokens: list[int]) -> str:
    return detokenize(BYTE_TOKENS, tokens)


def until_end(tokens: list[int]) -> list[int]:
    return next((tokens[:place] for place, token in enumerate(tokens) if token in END), tokens)


def ids_of(text: str) -> list[int]:
    return [256, *text.encode()]


@pytest.mark.parametrize("drafts", [0, 4])
def test_ngram_speculation_writes_what_plain_decoding_writes(drafts: int) -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            outcome = await run(system, "ngram_speculation", text=TEXT * 3, max_tokens=40, drafts=drafts)
            assert outcome.result == text_of(until_end(greedy(ids_of(TEXT * 3), 40)))

    in_loop(scenario)


def test_ngram_speculation_saves_steps_where_a_text_repeats_and_stops_where_it_does_not_pay() -> None:
    async def scenario() -> None:
        repeats = await counts("ngram_speculation", lambda history: history[-3], text="abcabc", max_tokens=60)
        # four guesses and one token each: what followed "bc" in abcabc is three letters, and then the first again
        assert repeats == {"steps": 12, "saved": 48, "guesses": 12, "gave_up": False}
        never = await counts("ngram_speculation", never_again, text="abcabc", max_tokens=60, ngram=1)
        assert never["gave_up"]
        assert never["steps"] + never["saved"] == 60

    in_loop(scenario)


@pytest.mark.parametrize("block", [1, 6])
def test_jacobi_writes_what_greedy_decoding_writes(block: int) -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            outcome = await run(system, "jacobi", text=TEXT, max_tokens=30, block=block)
            assert outcome.result == text_of(until_end(greedy(ids_of(TEXT), 30)))

    in_loop(scenario)


def test_jacobi_keeps_guesses_that_came_true_before_their_turn() -> None:
    async def scenario() -> None:
        found = await counts("jacobi", lambda history: 97 + len(history) % 5, text="x", max_tokens=24, block=8)
        # 1 and 9, twice, then 1 and 3: only where a token stands counts
        assert found == {"steps": 6, "saved": 18, "guesses": 6, "gave_up": False}
        never = await counts("jacobi", of_all_before, text="x", max_tokens=60, block=4)
        assert never["gave_up"]
        assert never["steps"] + never["saved"] == 60

    in_loop(scenario)


@pytest.mark.parametrize(("beams", "length_penalty", "seed"), [(1, 1.0, 0), (3, 1.0, 0), (4, 0.0, 1), (3, 2.0, 2)])
def test_beam_search_is_that_of_transformers(tmp_path: Path, beams: int, length_penalty: float, seed: int) -> None:
    write_hf_folder(byte_model(seed), tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    found = reference.generate(
        torch.tensor([ids_of(TEXT)]), num_beams=beams, max_new_tokens=16, do_sample=False, eos_token_id=list(END),
        length_penalty=length_penalty, pad_token_id=0, early_stopping=False,
    )[0, len(ids_of(TEXT)) :].tolist()  # fmt: skip

    async def scenario() -> None:
        async with byte_system(seed=seed) as system:
            outcome = await run(
                system, "beam_search", text=TEXT, beams=beams, max_tokens=16, length_penalty=length_penalty
            )
            assert outcome.result == text_of(until_end(found))

    in_loop(scenario)


PATTERN = re.compile(r"[a-h]([a-h]x)*[yz]{2,4}")
PLACES = {0: "abcdefgh", 1: "abcdefghyz", 2: "x", 3: "yz", 4: "yz", 5: "yz", 6: ""}  # what may come in each state


def allowed_after(text: str) -> list[int]:
    """The letters that may follow in a text of PATTERN, by an automaton of its own, and the ends where it is whole."""
    state = 0
    for letter in text:
        assert letter in PLACES[state], text
        if state in (0, 2):
            state = 1
        elif state == 1:
            state = 2 if letter in "abcdefgh" else 3
        else:
            state += 1
    return [*PLACES[state].encode(), *(END if state in (4, 5, 6) else ())]


@pytest.mark.parametrize(("beams", "length_penalty", "seed"), [(1, 1.0, 0), (3, 1.0, 1), (4, 0.0, 2), (4, 2.0, 3)])
def test_beams_with_a_grammar_each_are_those_of_transformers(
    tmp_path: Path, beams: int, length_penalty: float, seed: int
) -> None:
    prompt = ids_of(TEXT)
    write_hf_folder(byte_model(seed), tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()

    def allowed(_: int, ids: torch.Tensor) -> list[int]:
        text = bytes(ids.tolist()[len(prompt) :]).decode() if max(ids.tolist()[1:]) < 256 else None
        return [0] if text is None else allowed_after(text)

    found = reference.generate(
        torch.tensor([prompt]), num_beams=beams, max_new_tokens=14, do_sample=False, eos_token_id=list(END),
        length_penalty=length_penalty, pad_token_id=0, early_stopping=False, prefix_allowed_tokens_fn=allowed,
    )[0, len(prompt) :].tolist()  # fmt: skip

    async def scenario() -> None:
        async with byte_system(seed=seed) as system:
            options = {"beams": beams, "max_tokens": 14, "length_penalty": length_penalty, "pattern": PATTERN.pattern}
            outcome = await run(system, "beam_search", text=TEXT, **options)
            assert outcome.result == text_of(until_end(found))
            assert PATTERN.fullmatch(outcome.result) or len(outcome.result) == 14

    in_loop(scenario)


def test_beams_share_their_pages() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            before = await system.controller.stats()
            outcome = await run(system, "beam_search", text=TEXT * 20, beams=4, max_tokens=8)
            after = await system.controller.stats()
            assert outcome.final.code == "ok"
            num_run = after.num_prefill_tokens - before.num_prefill_tokens
            assert (
                num_run <= 1 + len(TEXT) * 20 + 2 * 4 * 8
            )  # the prompt once; a fork's first row has its last token too

    in_loop(scenario)


def test_the_watermark_is_found_in_marked_text_and_in_no_other() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            for seed in range(8):
                marked = await run(system, "watermark", text=TEXT, seed=seed)
                plain = await run(system, "watermark", text=TEXT, seed=seed, mark=False)
                assert emitted(marked)[-1]["z"] > 4
                assert abs(emitted(plain)[-1]["z"]) < 2

    in_loop(scenario)


def test_shares_of_answers_are_those_of_the_models_log_softmax() -> None:
    answers = ["Yes", "No", "Perhaps"]
    question = "Is it?"

    async def scenario() -> None:
        async with byte_system() as system:
            assert system.text.chat_template is not None
            messages = [{"role": "user", "content": question}]
            prompt = system.text.chat_template.render_delta(messages, 0, False, True)
            outcome = await run(system, "output_validation", question=question, answers=answers)
            sums = []
            for answer in answers:
                tokens = list(answer.encode())
                sums.append(sum(logprobs_after(prompt + tokens[:n])[token] for n, token in enumerate(tokens)))
            total = np.logaddexp.reduce(sums)
            for answer, one in zip(answers, sums, strict=True):
                assert outcome.result[answer] == pytest.approx(math.exp(one - total), abs=1e-5)
            assert sum(outcome.result.values()) == pytest.approx(1.0)

    in_loop(scenario)


def test_guidance_takes_the_token_that_the_weighted_scores_prefer() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            outcome = await run(system, "guidance", instruction="Be odd.", text=TEXT, weight=2.0, max_tokens=8)
            guided, plain, written = ids_of(f"Be odd. {TEXT}"), ids_of(TEXT), list[int]()
            while len(written) < 8:
                scores = -1.0 * logprobs_after(plain + written) + 2.0 * logprobs_after(guided + written)
                if (token := int(scores.argmax())) in END:
                    break
                written.append(token)
            assert outcome.result == text_of(written)
            assert emitted(outcome)[-1]["changed"] > 0  # else it shows nothing

    in_loop(scenario)


def test_contrastive_decoding_takes_what_the_expert_prefers_most_of_what_is_plausible() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            outcome = await run(system, "contrastive_decoding", text=TEXT, memory=3, plausible=0.2, max_tokens=8)
            context, written = ids_of(TEXT), list[int]()
            while len(written) < 8:
                expert, amateur = logprobs_after(context + written), logprobs_after((context + written)[-3:])
                gains = np.where(expert >= expert.max() + math.log(0.2), expert - amateur, -np.inf)
                if (token := int(gains.argmax())) in END:
                    break
                written.append(token)
            assert outcome.result == text_of(written)
            assert text_of(written) != text_of(greedy(context, 8))

    in_loop(scenario)


def test_best_of_n_keeps_the_answer_with_the_highest_mean_log_probability() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            outcome = await run(system, "best_of_n", n=4, max_tokens=12)
            answers = emitted(outcome)[-1]["answers"]
            assert len({text for text, _ in answers}) == 4
            assert outcome.result == max(answers, key=lambda one: one[1])[0]

    in_loop(scenario)
