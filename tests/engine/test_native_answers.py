"""The native kernels' answers beside engine.sampler and the oracle, on each instruction set; a row's are its own."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from engine_rig import pairs
from test_device_sampling import questions, some_logits

from kernels_here import needs_kernels
from loopwright.core.batch import ForwardRow, RowResult
from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.engine.asked import Asked
from loopwright.engine.native import answers, build
from loopwright.engine.native.answers import NativeAnswers
from loopwright.engine.oracle import next_token
from loopwright.engine.sampler import Question, answer
from loopwright.weights.store import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwright.engine.native.compiler import InstructionSet

pytestmark = needs_kernels
SETS = build.processor_sets()


class Answering:
    """NativeAnswers with a workspace of its own."""

    def __init__(self, instructions: InstructionSet, num_threads: int = 2) -> None:
        self._library = build.load_kernels(cache_folder(), instructions).library
        self._workspace = self._library.workspace_new(num_threads, 1 << 20)
        self._by_size: dict[int, NativeAnswers] = {}

    def __call__(self, logits: torch.Tensor, asked: list[Question]) -> list[RowResult]:
        return self.of_size(logits.shape[1]).answer(logits, asked)

    def of_size(self, size: int) -> NativeAnswers:
        if size not in self._by_size:
            self._by_size[size] = NativeAnswers(self._library, self._workspace, size)
        return self._by_size[size]

    @property
    def taken(self) -> int:
        return int(self._library.workspace_bytes(self._workspace))

    def close(self) -> None:
        self._library.workspace_free(self._workspace)


@pytest.fixture(params=SETS)
def native(request: pytest.FixtureRequest) -> Iterator[Answering]:
    answering = Answering(request.param)
    yield answering
    answering.close()


def assert_same(mine: RowResult, theirs: RowResult) -> None:
    assert mine.error == theirs.error
    assert [one.token_id for one in mine.sampled] == [one.token_id for one in theirs.sampled]
    for one, other in zip(mine.sampled, theirs.sampled, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=2e-6, rel=1e-6)
        assert [token for token, _ in one.top_logprobs] == [token for token, _ in other.top_logprobs]
        assert [at for _, at in one.top_logprobs] == pytest.approx([at for _, at in other.top_logprobs], abs=2e-6)
    for one, other in zip(mine.distributions, theirs.distributions, strict=True):
        assert [token for token, _ in pairs(one)] == [token for token, _ in pairs(other)]
        assert [at for _, at in pairs(one)] == pytest.approx([at for _, at in pairs(other)], abs=2e-6, rel=1e-6)
        assert (one.truncated, one.logits, one.ranks) == (other.truncated, other.logits, other.ranks)
        assert (one.covered, one.tail_mass) == pytest.approx((other.covered, other.tail_mass), abs=1e-6)
        assert one.entropy == pytest.approx(other.entropy, abs=1e-5)  # that one's is from a sum of single floats
        assert one.allowed_mass == pytest.approx(other.allowed_mass, abs=1e-6)
    assert (mine.sampler_state is None) == (theirs.sampler_state is None)


def more_questions() -> list[Question]:
    """Beside those that a device is asked: what is listed of masked and of all tokens, and what is rare."""
    hot: dict[str, Any] = {"temperature": 1.0, "seed": 8}
    return [
        Question((DistributionRequest(k=9, must_include=(2, 17, 2980), ranks=True),)),
        Question((DistributionRequest(k=9, must_include=(2, 17, 2980, 17), entropy=True),)),
        Question((DistributionRequest(k=5, allowed=(2, 9, 2999, 5000), must_include=(4, 9), entropy=True),)),
        Question((DistributionRequest(k=3000, allowed=tuple(range(0, 3000, 7)), logits=True),), Sampling(), 1),
        Question((DistributionRequest(k=1), DistributionRequest(k=1), DistributionRequest(k=2999)), Sampling(**hot)),
        Question(sampling=Sampling(temperature=1e-3, top_logprobs=20, logprobs="processed", seed=3)),
        Question(sampling=Sampling(temperature=100.0, top_p=0.999, logprobs="processed", top_logprobs=20)),
        Question(sampling=Sampling(temperature=1.0, min_p=1.0, logprobs="processed", top_logprobs=20)),
        Question(sampling=Sampling(temperature=1.0, top_p=1e-9, top_logprobs=20)),
        Question(sampling=Sampling(repetition_penalty=1e-300, seen=(900, 7), **hot)),
        Question(sampling=Sampling(typical_p=0.4, top_p=0.8, repetition_penalty=1.3, seen=(3,), **hot)),
        Question(sampling=Sampling(typical_p=0.4)),
        Question(sampling=Sampling(allowed=(7,), logprobs="processed", top_logprobs=3, **hot)),
        Question(sampling=Sampling(top_k=5, allowed=(7, 11), logprobs="processed", top_logprobs=3, **hot)),
        Question(sampling=Sampling(**hot), allowed_bits=b"\x90"),  # fewer bits than tokens: the others may not be
    ]


def test_every_question_gets_the_samplers_answer(native: Answering) -> None:
    asked = [*questions(), *more_questions()]
    logits = some_logits(len(asked), seed=2)
    logits[1, 40], logits[4, 2999], logits[6, 0] = torch.nan, torch.inf, -torch.inf
    results = native(logits, asked)
    assert all(results[place].error is not None for place in (1, 4, 6))
    for mine, theirs in zip(results, answer(logits, asked), strict=True):
        assert_same(mine, theirs)


@pytest.mark.parametrize("vocab_size", [5, 16, 63, 64, 65, 260, 1000, 4112, 49152])
def test_every_size_of_vocabulary_is_read_to_its_end(native: Answering, vocab_size: int) -> None:
    """With the highest at either end, and with ties that only the lowest id decides."""
    logits = some_logits(12, max(vocab_size, 30), seed=vocab_size)[:, :vocab_size].contiguous()
    logits[0, -1] = logits[1, 0] = 40.0
    logits[2] = 3.0
    k = min(vocab_size, 300)
    asked = [
        Question([DistributionRequest(k=k, entropy=True)], Sampling(top_logprobs=min(5, k))),
        Question([DistributionRequest(k=min(vocab_size, 5000))], Sampling(temperature=1.0, top_k=4, top_logprobs=1)),
        Question([DistributionRequest(k=1)], Sampling(temperature=2.0, top_p=0.7, seed=5)),
        Question(sampling=Sampling(temperature=0.5, seed=9), allowed_bits=b"\xf0" * (vocab_size // 8 + 1)),
    ] * 3  # fmt: skip
    for mine, theirs in zip(native(logits, asked), answer(logits, asked), strict=True):
        assert_same(mine, theirs)


def test_entropies_are_exact_and_normalizers_nearly(native: Answering) -> None:
    logits = some_logits(6, 49152, seed=3)
    asked = [Question([DistributionRequest(k=1, entropy=True)], Sampling())] * 6
    exact = torch.distributions.Categorical(logits=logits.double())
    for result, entropy, logprobs in zip(native(logits, asked), exact.entropy(), exact.logits, strict=True):
        assert result.distributions[0].entropy == pytest.approx(float(entropy), abs=1e-11)
        assert result.logprob == pytest.approx(float(logprobs.max()), abs=3e-7)


def some_sampling(chance: random.Random) -> Sampling:
    """A mix of everything that a sampling can ask but typical_p."""
    fields: dict[str, Any] = {"temperature": chance.choice([0.0, 0.2, 1.0, 1.0, 3.0]), "seed": chance.getrandbits(60)}
    options: dict[str, Any] = {
        "repetition_penalty": chance.uniform(0.5, 2), "presence_penalty": chance.uniform(-2, 2),
        "frequency_penalty": chance.uniform(-2, 2), "logit_bias": {chance.randrange(300): 3.5, 7: -2.0},
        "allowed": tuple(chance.sample(range(300), 40)), "top_k": chance.choice([1, 3, 40, 299, 300, 500]),
        "top_p": chance.choice([0.05, 0.5, 0.9, 0.999]), "min_p": chance.choice([0.001, 0.1, 0.9]),
        "logprobs": "processed", "top_logprobs": chance.randint(1, 20),
    }  # fmt: skip
    chosen = {name: value for name, value in options.items() if chance.random() < 0.35}
    lists = {name: tuple(chance.choices(range(300), k=12)) for name in ("seen", "generated")}
    return Sampling(**fields, **chosen, **lists)


def test_thousands_of_tokens_are_the_oracles(native: Answering) -> None:
    """Its sampler shares no line with the kernels, nor with engine.sampler."""
    chance = random.Random(11)
    logits = some_logits(3000, 300, seed=5)
    logits[:, 11] += 0.01  # the oracle does not round after penalties: no ties that only rounding makes
    asked = [
        Question(sampling=some_sampling(chance), position=chance.randrange(9000),
                 generated=tuple(chance.choices(range(300), k=chance.randrange(4))))
        for _ in logits
    ]  # fmt: skip
    for row, question, result in zip(logits.double().numpy(), asked, native(logits, asked), strict=True):
        assert question.sampling is not None
        token, logprob, top = next_token(row, question.sampling, question.position, question.generated)
        assert result.token_id == token, question
        assert result.sampled[0].logprob == pytest.approx(logprob, abs=1e-5)
        assert [one for one, _ in result.sampled[0].top_logprobs] == [one for one, _ in top]
        np.testing.assert_allclose([at for _, at in result.sampled[0].top_logprobs], [at for _, at in top], atol=1e-5)


@pytest.mark.parametrize("instructions", SETS)
def test_the_bits_of_an_answer_are_its_rows_own(instructions: InstructionSet) -> None:
    asked = [*questions(), *more_questions()]
    logits = some_logits(len(asked), seed=4)
    several, single = Answering(instructions, 3), Answering(instructions, 1)
    for _ in range(2):  # what a thread did before leaves nothing behind
        for place, together in enumerate(several(logits, asked)):
            [alone] = single(logits[place : place + 1], asked[place : place + 1])
            assert together.sampled == alone.sampled
            assert together.distributions == alone.distributions
    several.close()
    single.close()


DRAFTED: dict[str, Sampling] = {
    "greedy": Sampling(top_logprobs=3),
    "drawn": Sampling(temperature=1.0, seed=5),
    "filtered": Sampling(temperature=0.9, top_p=0.8, min_p=0.01, seed=6),
    "penalties": Sampling(temperature=1.0, seed=7, repetition_penalty=1.4, frequency_penalty=0.5, seen=(3, 9)),
    "rare": Sampling(temperature=0.7, typical_p=0.9, seed=8, logprobs="processed", top_logprobs=4),
}


def drafted(sampling: Sampling, drafts: list[int], **fields: Any) -> Asked:
    """A row of one token and its drafts, whose logits begin with the first."""
    tokens = [1, *drafts]
    row = ForwardRow(
        (0,), 0, range(len(tokens)), tokens, sampling=sampling, sample_position=len(tokens), num_drafts=len(drafts),
        generated=(4, 4), **fields,
    )  # fmt: skip
    return Asked.of_row(row, len(tokens))


def told(asked: list[Asked], logits: torch.Tensor, ask: Any) -> list[RowResult]:
    results = iter(ask(logits, [question for one in asked for _, question in one.questions]))
    return [one.assemble(results) for one in asked]


def chosen_one_by_one(sampling: Sampling, logits: torch.Tensor, ask: Any) -> list[int]:
    """What the rows [5, vocab_size] give, each asked when the tokens before are known."""
    tokens: list[int] = []
    for place in range(5):
        [one] = ask(logits[place : place + 1], [Question((), sampling, place + 1, (4, 4, *tokens))])
        assert one.token_id is not None
        tokens.append(one.token_id)
    return tokens


def test_drafts_are_what_sampling_one_after_the_other_gives(native: Answering) -> None:
    """Four drafts a row, of which none to all are right; all rows of all kinds in one call, and in the reference."""
    asked, expected = [], []
    logits = some_logits(25 * len(DRAFTED), seed=21)
    for number, (place, sampling) in enumerate((right, one) for one in DRAFTED.values() for right in range(5)):
        mine = logits[5 * number : 5 * number + 5]
        tokens = chosen_one_by_one(sampling, mine, native)
        assert tokens == chosen_one_by_one(sampling, mine, answer)
        asked.append(drafted(sampling, [*tokens[:place], *((one + 1) % 3000 for one in tokens[place:4])]))
        expected.append(tokens[: place + 1])
    results = told(asked, logits, native)
    assert [[sampled.token_id for sampled in one.sampled] for one in results] == expected
    for mine, theirs in zip(results, told(asked, logits, answer), strict=True):
        assert_same(mine, theirs)
    for place, one in enumerate(asked):  # the bits are the row's own
        assert told([one], logits[5 * place : 5 * place + 5], native) == [results[place]]


def test_nothing_is_answered_behind_a_wrong_draft_unless_it_is_asked_for(native: Answering) -> None:
    logits = some_logits(10, seed=22)
    logits[1:5] = torch.nan
    best = int(logits[0].argmax())
    wrong, right = (drafted(Sampling(), [draft, 2, 3, 4]) for draft in ((best + 1) % 3000, best))
    asking = drafted(Sampling(), [(best + 1) % 3000, 2, 3, 4], distributions=[DistributionRequest(index=4, k=3)])
    [found] = told([wrong], logits[:5], native)
    assert (found.error, found.token_id) == (None, best)
    answers_of_row = native(logits[:5], [question for _, question in wrong.questions])
    assert [bool(one.sampled) for one in answers_of_row] == [True, False, False, False, False]
    assert told([right], logits[:5], native)[0].error is not None
    assert told([asking], logits[:5], native)[0].error is not None
    [seen] = told([asking], logits[5:], native)
    assert len(seen.distributions) == 1


@pytest.mark.parametrize("num_right", [0, 2, 4])
def test_no_work_is_done_behind_a_wrong_draft(native: Answering, num_right: int) -> None:
    """Of rows that could well be answered, so that only the draft can be why they are not."""
    logits = some_logits(10, seed=24)
    tokens = chosen_one_by_one(Sampling(), logits[:5], native)
    drafts = [*tokens[:num_right], *((one + 1) % 3000 for one in tokens[num_right:4])]
    asked = [question for _, question in drafted(Sampling(), drafts).questions]
    found = native(logits, [*asked, *asked])[:5]  # beside a row of another, which has its own drafts
    assert [one.token_id for one in found[: num_right + 1]] == tokens[: num_right + 1]
    assert found[num_right + 1 :] == [RowResult()] * (4 - num_right)


def test_forced_drafts_are_each_the_only_token_in_its_place(native: Answering) -> None:
    logits = some_logits(5, seed=23)
    for fields in ({}, {"temperature": 1.0, "logprobs": "processed", "top_logprobs": 2, "frequency_penalty": 1.0}):
        one = drafted(Sampling(**fields), [5, 2999, 0, 17], are_drafts_forced=True)
        [mine], [theirs] = told([one], logits, native), told([one], logits, answer)
        assert [sampled.token_id for sampled in mine.sampled[:4]] == [5, 2999, 0, 17]
        assert_same(mine, theirs)


def test_memory_of_answers_is_counted_and_bounded(native: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    """A nucleus of the whole vocabulary takes megabytes on the thread that finds it, and a list of tokens its bits."""
    flat = torch.zeros(2, 200_000)
    [first, second] = native(flat, [Question(sampling=Sampling(temperature=1.0, top_p=1 - 1e-12, seed=3))] * 2)
    assert first.sampled == second.sampled
    assert native.taken <= (1 << 20) // 4
    one = native.of_size(3000)
    monkeypatch.setattr(answers, "_MOST_KEPT_BYTES", 40 * 1000)
    samplings = [Sampling(allowed=(7, number)) for number in range(200)]
    for sampling in samplings:
        native(some_logits(1), [Question(sampling=sampling)])
        assert one.kept_bytes <= 40 * 1000
    assert one.kept_bytes > 376 * 20
