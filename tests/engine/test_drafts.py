"""Rows with drafts: what comes of them is what sampling one token after the other gives, accepted or not."""

import msgspec
import numpy as np
import pytest
import torch
from engine_rig import Rig, dense, log_softmax, some_tokens

from loopwright.core.batch import ForwardRow
from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.engine.loaded_model import LoadedModel
from loopwright.engine.oracle import Oracle

PROMPT = some_tokens(20)
SETTINGS = {
    "greedy": Sampling(),
    "seeded": Sampling(temperature=1.0, seed=5),
    "filtered": Sampling(temperature=0.9, top_p=0.8, min_p=0.01, seed=6),
    "penalties": Sampling(
        temperature=1.0, seed=7, repetition_penalty=1.4, presence_penalty=0.8, frequency_penalty=0.5, seen=tuple(PROMPT)
    ),
    "processed": Sampling(temperature=0.7, typical_p=0.9, seed=8, logprobs="processed", top_logprobs=4),
}


def drafted(rig: Rig, drafts: list[int], sampling: Sampling, **fields) -> ForwardRow:
    tokens = [*PROMPT, *drafts]
    fields = {
        "block_ids": rig.blocks(len(tokens)),
        "kv_len": 0,
        "positions": list(range(len(tokens))),
        "token_ids": tokens,
        "sampling": sampling,
        "sample_position": len(tokens),
        "num_drafts": len(drafts),
    } | fields
    return ForwardRow(**fields)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("num_right", [0, 1, 3, 6])
def test_right_drafts_are_accepted_and_the_first_wrong_one_is_replaced(
    model: LoadedModel, setting: str, num_right: int
) -> None:
    rig, sampling = Rig(model), SETTINGS[setting]
    expected = Oracle(model).generate(PROMPT, sampling, max_tokens=7)
    drafts = list(expected.tokens[:6])
    drafts[num_right:] = [(one + 1) % 256 for one in drafts[num_right:]]
    [result] = rig.rows(drafted(rig, drafts, sampling))
    assert [one.token_id for one in result.sampled] == list(expected.tokens[: num_right + 1])
    np.testing.assert_allclose([one.logprob for one in result.sampled], expected.logprobs[: num_right + 1], atol=1e-5)
    for one, top in zip(result.sampled, expected.top_logprobs, strict=False):
        assert [i for i, _ in one.top_logprobs] == [i for i, _ in top]
        np.testing.assert_allclose([p for _, p in one.top_logprobs], [p for _, p in top], atol=1e-5)


def test_after_a_rejection_the_row_goes_on_over_the_rejected_drafts(model: LoadedModel) -> None:
    rig, sampling = Rig(model), Sampling(temperature=1.0, seed=9)
    expected = Oracle(model).generate(PROMPT, sampling, max_tokens=12)
    table = rig.blocks(40)
    wrong = [*expected.tokens[:2], *some_tokens(6, 4)]
    [first] = rig.rows(drafted(rig, wrong, sampling, block_ids=table))
    assert [one.token_id for one in first.sampled] == list(expected.tokens[:3])
    rest = list(expected.tokens[2:11])
    row = ForwardRow(table, 22, list(range(22, 31)), rest, sampling=sampling, sample_position=31, num_drafts=8)
    [second] = rig.rows(row)
    assert [one.token_id for one in second.sampled] == list(expected.tokens[3:12])


def test_each_draft_has_its_own_mask(model: LoadedModel) -> None:
    rig, drafts = Rig(model), some_tokens(3, 7)
    masks = [(0, i + 1) for i in range(20)] + [(0, 5, 10, i - 14) for i in range(20, 23)]  # drafts do not see 5 … 14
    is_visible = torch.ones(23, 23, dtype=torch.bool).tril()
    is_visible[20:, 5:15] = False
    expected = Oracle(model).logits([*PROMPT, *drafts], mask=is_visible)[19:].argmax(-1).tolist()
    right = 0
    while right < 3 and drafts[right] == expected[right]:
        right += 1
    requests = [DistributionRequest(index=i, k=rig.vocab_size) for i in (19, 20, 22)]
    [result] = rig.rows(drafted(rig, drafts, Sampling(), mask=masks, distributions=requests))
    assert [one.token_id for one in result.sampled] == expected[: right + 1]
    logprobs = log_softmax(Oracle(model).logits([*PROMPT, *drafts], mask=is_visible))
    for request, found in zip(requests, result.distributions, strict=True):
        np.testing.assert_allclose(dense(found), logprobs[request.index], atol=1e-5)


def test_what_is_not_finite_behind_a_rejected_draft_fails_nothing_that_was_not_asked(model: LoadedModel) -> None:
    rig = Rig(model)
    expected = Oracle(model).generate(PROMPT, Sampling(), max_tokens=2)
    wrong = (expected.tokens[0] + 1) % 256
    table = rig.blocks(30)
    rig.rows(ForwardRow(table, 0, list(range(20)), PROMPT))
    head = rig.runner._model.logits

    def broken(normalized: torch.Tensor) -> torch.Tensor:
        logits = head(normalized).clone()
        logits[1:] = torch.nan
        return logits

    rig.runner._model.logits = broken
    row = ForwardRow(table, 19, [19, 20], [PROMPT[-1], wrong], sampling=Sampling(), sample_position=21, num_drafts=1)
    [result] = rig.rows(row)
    assert result.error is None
    assert result.token_id == expected.tokens[0]
    asking = ForwardRow(
        table, 19, [19, 20], [PROMPT[-1], wrong], sampling=Sampling(), sample_position=21, num_drafts=1,
        distributions=[DistributionRequest(k=3)],
    )  # fmt: skip
    assert rig.rows(asking)[0].error is not None
    row = ForwardRow(
        table, 19, [19, 20], [PROMPT[-1], expected.tokens[0]], sampling=Sampling(), sample_position=21, num_drafts=1
    )
    assert rig.rows(row)[0].error is not None  # the draft was right, so the broken row counts


def test_drafts_beside_other_rows_change_nothing(model: LoadedModel) -> None:
    rig = Rig(model, num_blocks=256)
    samplings = [*SETTINGS.values()]
    right = [Oracle(model).generate(PROMPT, one, max_tokens=5).tokens for one in samplings]
    rows = [drafted(rig, list(tokens[:4]), one) for tokens, one in zip(right, samplings, strict=True)]
    rows += [rig.row(some_tokens(9, 3)), drafted(rig, [], Sampling())]
    for tokens, result in zip(right, rig.rows(*rows), strict=False):
        assert [one.token_id for one in result.sampled] == list(tokens)


@pytest.mark.parametrize(
    "changes",
    [{"num_drafts": 21}, {"num_drafts": -1}, {"sampling": None, "num_drafts": 1}, {"generated": [300]}],
)
def test_drafts_that_cannot_be_are_the_rows_error(model: LoadedModel, changes: dict) -> None:
    rig = Rig(model)
    [result] = rig.rows(msgspec.structs.replace(drafted(rig, [1], Sampling()), **changes))
    assert result.error is not None
    assert result.error.field in ("num_drafts", "generated")


@pytest.mark.parametrize("place", [0, 5])
def test_drafts_keep_the_distribution(model: LoadedModel, place: int) -> None:
    """Pearson's chi-square of the first two tokens over many seeds, at six standard deviations. The draft is the most
    probable token, or a less probable one."""
    rig, num_draws, top_k = Rig(model, num_blocks=300), 1000, 10
    [shared] = rig.blocks(16)
    rig.rows(ForwardRow([shared], 0, list(range(16)), PROMPT[:16]))
    ranked = Oracle(model).logits(PROMPT)[-1].argsort(descending=True).tolist()
    draft = ranked[place]
    first, second = np.zeros(260), np.zeros(260)
    for start in range(0, num_draws, 250):
        rows = [
            ForwardRow([shared, block], 16, list(range(16, 21)), [*PROMPT[16:], draft],
                       sampling=Sampling(temperature=1.0, top_k=top_k, seed=start + number), sample_position=21,
                       num_drafts=1)
            for number, block in enumerate(rig._free[:250])
        ]  # fmt: skip
        for result in rig.rows(*rows):
            first[result.sampled[0].token_id] += 1
            if len(result.sampled) == 2:
                second[result.sampled[1].token_id] += 1
    assert second.sum() == first[draft]
    assert_drawn_from(Oracle(model).logits(PROMPT)[-1], top_k, first)
    assert_drawn_from(Oracle(model).logits([*PROMPT, draft])[-1], top_k, second)


def assert_drawn_from(logits: torch.Tensor, top_k: int, observed: np.ndarray) -> None:
    values, ids = logits.double().topk(top_k)
    expected = np.zeros(260)
    expected[ids] = values.softmax(0) * observed.sum()
    assert observed[expected == 0].sum() == 0
    cells = expected >= 5
    statistic = float(((observed - expected)[cells] ** 2 / expected[cells]).sum())
    freedom = max(1, int(cells.sum()) - 1)
    assert statistic < freedom + 6 * (2 * freedom) ** 0.5
