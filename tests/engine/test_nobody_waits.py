"""Steps of every kind of row are launched without a look at what the device computes, and give what they would so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from parity import ARCHITECTURES
from torch.overrides import TorchFunctionMode

from ahead_rig import NAMES, Kinds
from device_rig import device_rig
from loopwright.core.batch import Batch, BlockCopy, EmbedRow, ForwardRow, HeadRow
from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.engine.byte_model import byte_model
from loopwright.engine.cuda.operations import TorchOperations
from runner_rig import Rig, some_tokens

if TYPE_CHECKING:
    from loopwright.core.batch import RowResult
    from loopwright.engine.loaded_model import LoadedModel

NUM_STEPS = 24
LOOKS = {
    torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu, torch.Tensor.__bool__,
    torch.Tensor.__int__, torch.Tensor.__float__, torch.Tensor.__index__, torch.Tensor.__array__,
    torch.Tensor.nonzero, torch.nonzero, torch.Tensor.unique, torch.masked_select, torch.Tensor.masked_select,
    torch.Tensor.equal,
}  # fmt: skip


class Unseen(TorchFunctionMode):
    """An error for whoever looks at a value: on a GPU it would wait until that is computed."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in LOOKS, f"{func.__name__} looks at what is being computed"
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            indices = args[1] if isinstance(args[1], tuple) else (args[1],)
            assert not any(isinstance(one, torch.Tensor) and one.dtype == torch.bool for one in indices)
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def lengths_may_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference of a kernel that finds them on the device."""
    attend = TorchOperations.attend

    def unwatched(*args: Any) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            return attend(*args)

    monkeypatch.setattr(TorchOperations, "attend", unwatched)


def same(mine: RowResult, theirs: RowResult, name: str) -> None:
    assert [one.token_id for one in mine.sampled] == [one.token_id for one in theirs.sampled], name
    for one, other in zip(mine.sampled, theirs.sampled, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4), name
        assert [token for token, _ in one.top_logprobs] == [token for token, _ in other.top_logprobs], name
        assert [at for _, at in one.top_logprobs] == pytest.approx([at for _, at in other.top_logprobs], abs=1e-4)
    for one, other in zip(mine.distributions, theirs.distributions, strict=True):
        assert (one.ids[:12], one.ranks, one.truncated) == (other.ids[:12], other.ranks, other.truncated), name
        for field in ("logprobs", "logits"):
            found, wanted = getattr(one, field) or b"", getattr(other, field) or b""
            np.testing.assert_allclose(np.frombuffer(found, "<f4"), np.frombuffer(wanted, "<f4"), atol=1e-4)
        for field in ("covered", "tail_mass", "entropy", "allowed_mass"):
            assert getattr(one, field) == pytest.approx(getattr(other, field), abs=1e-4), name
    assert (mine.sampler_state is None) == (theirs.sampler_state is None), name
    if mine.sampler_state is not None and theirs.sampler_state is not None:
        for key, value in theirs.sampler_state.values().items():
            found = mine.sampler_state.values()[key]
            if isinstance(value, bytes):
                found, value = np.frombuffer(found), np.frombuffer(value)
            assert found == pytest.approx(value, abs=1e-3), (name, key)


@pytest.mark.parametrize("names", [NAMES[:6], NAMES[4:9], NAMES[6:14], NAMES[14:], NAMES[::4]])
def test_every_kind_of_row_is_launched_unseen_and_gets_what_the_model_runner_gives_it(
    model: LoadedModel, names: tuple[str, ...]
) -> None:
    expected = Kinds(Rig(model), names).run(NUM_STEPS, is_ahead=False)
    found = Kinds(device_rig(model), names).run(NUM_STEPS, is_ahead=True, launching=Unseen)
    for mine, theirs in zip(found, expected, strict=True):
        for name, one, other in zip(names, mine, theirs, strict=True):
            same(one, other, name)


def test_step_by_step_they_get_the_same(model: LoadedModel) -> None:
    names = NAMES[5:13]
    expected = Kinds(Rig(model), names).run(6, is_ahead=False)
    found = Kinds(device_rig(model), names).run(6, is_ahead=False)
    for mine, theirs in zip(found, expected, strict=True):
        for name, one, other in zip(names, mine, theirs, strict=True):
            same(one, other, name)


@pytest.mark.parametrize("name", ["Llama 3", "Mistral: window", "Gemma 3"])
def test_drafts_slots_copies_and_heads_are_launched_unseen_too(name: str) -> None:
    found = []
    model = byte_model(seed=2, **{"num_layers": 3, **ARCHITECTURES[name]})
    for rig in (device_rig(model), Rig(model)):
        tables = [rig.blocks(40) for _ in range(4)]
        rig.rows(*(rig.row(some_tokens(20, place), block_ids=table) for place, table in enumerate(tables)))
        batch = Batch(
            copies=[BlockCopy(tables[0][0], tables[3][0], 0, 0, 10)],
            embeds=[EmbedRow([4, 5], [20, 21], [7, 8])],
            rows=[
                ForwardRow(tables[0], 20, (), input_slots=[7, 8], output_slots=[9]),
                ForwardRow(tables[1], 20, [20, 21, 22], [9, 1, 2], sampling=Sampling(temperature=1.0), num_drafts=2,
                           sample_position=23, distributions=[DistributionRequest(index=1, k=4)]),
                ForwardRow(tables[2], 20, [20, 21], [9, 1], sampling=Sampling(), sample_position=22, num_drafts=1,
                           are_drafts_forced=True),
            ],
            heads=[HeadRow(9, [DistributionRequest(k=5)], Sampling(temperature=1.0, seed=2), 40)],
        )  # fmt: skip
        with torch.inference_mode():
            if not found:
                with Unseen():
                    launched = rig.runner.launch(batch)
                result = launched.result()
            else:
                result = rig.runner.run(batch)
        found.append([*result.rows, *result.heads])
    for mine, theirs in zip(*found, strict=True):
        same(mine, theirs, "drafts")


def test_the_token_after_accepted_drafts_is_on_the_device_for_a_row_that_names_it(model: LoadedModel) -> None:
    """Rejected ones leave the token in their place."""
    rig = device_rig(model)
    reference = Rig(model)
    likely = reference.rows(reference.row(some_tokens(20)))[0]
    first = int(np.frombuffer(likely.distributions[-1].ids[:4], "<i4")[0])
    for drafts in ([first, 3], [(first + 1) % 256, 3]):
        table = rig.blocks(40)
        row = ForwardRow(table, 0, range(22), [*some_tokens(20), *drafts], sampling=Sampling(), num_drafts=2,
                         sample_position=22)  # fmt: skip
        with torch.inference_mode():
            launched = rig.runner.launch(Batch(rows=[row]))
            assert launched.sampled is not None
            on_device = launched.sampled[:, 0].tolist()
        assert on_device == [launched.result().rows[0].token_id, 0]
