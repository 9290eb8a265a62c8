"""What segments ask for beside a token, as columns of the decode group: together, alone, and when one leaves."""

import msgspec
import pytest

from loopwright.core.calls import Generate, Sampling
from loopwright.core.errors import InternalError
from loopwright.core.results import Segment
from loopwright.core.watch_calls import Acknowledge, Veto, Watch

from .rig import Rig, RigRun, generate
from .step_by_step import COUNTER

HOT = Sampling(temperature=1.0, seed=3)
KINDS: dict[str, dict[str, object]] = {
    "plain": {},
    "streamed": {"progress": True},
    "sampler": {"sampler": COUNTER, "sampler_state": {"count": 4.0}},
    "likeliest": {"sampling": msgspec.structs.replace(HOT, top_logprobs=3), "progress": True},
    "unsure": {"stop_entropy": 9.0},
    "sampler, unsure": {"sampler": COUNTER, "sampler_state": {"count": 1.0}, "stop_entropy": 9.9},
    "watched": {"watch": Watch(64)},
    "watched sampler": {"watch": Watch(64), "sampler": COUNTER, "sampler_state": {"count": 0.0}},
}


def segment_of(name: str, max_tokens: int = 12) -> Generate:
    call = generate((5 + list(KINDS).index(name),), sampling=HOT, max_tokens=max_tokens)
    return msgspec.structs.replace(call, **KINDS[name])


def ended(rig: Rig, run: RigRun, call: int) -> Segment:
    """What the segment comes to, with all of it acknowledged if its program watches it."""
    rig.drain()
    if run.final(call) is None:
        num_tokens = max(part.first + len(part.tokens) for part in run.parts[call])
        run.now(Acknowledge(handle=int(call), num_tokens=num_tokens))
    return run.segment(call)


def alone(name: str, max_tokens: int = 12) -> Segment:
    rig = Rig()
    run = rig.open("alone")
    return ended(rig, run, run.submit(segment_of(name, max_tokens)))


@pytest.mark.parametrize("is_ahead", [False, True])
def test_all_kinds_are_in_one_group_and_each_gets_what_it_gets_alone(is_ahead: bool) -> None:
    rig = Rig(is_ahead=is_ahead)
    runs = {name: rig.open(name) for name in KINDS}
    calls = {name: run.submit(segment_of(name)) for name, run in runs.items()}
    rig.drain()
    sizes = [(len(batch.rows), len(batch.decodes)) for batch in rig.executor.batches]
    assert sizes[:2] == [(len(KINDS), 0), (0, len(KINDS))]
    assert not any(batch.rows for batch in rig.executor.batches[1:])
    for name, run in runs.items():
        assert ended(rig, run, calls[name]) == alone(name), name
    reasons = {name: runs[name].segment(call).reason for name, call in calls.items()}
    assert reasons["unsure"] == "entropy"
    parts = runs["likeliest"].parts[calls["likeliest"]]
    assert tuple(top for part in parts for top in part.top_logprobs) == alone("likeliest").top_logprobs
    assert len(runs["unsure"].segment(calls["unsure"]).tokens) < 12


@pytest.mark.parametrize("gone", ["plain", "sampler", "likeliest", "unsure", "watched sampler"])
@pytest.mark.parametrize("is_ahead", [False, True])
def test_the_others_do_not_notice_that_one_is_cancelled(gone: str, is_ahead: bool) -> None:
    rig = Rig(is_ahead=is_ahead)
    runs = {name: rig.open(name) for name in KINDS}
    calls = {name: run.submit(segment_of(name)) for name, run in runs.items()}
    for _ in range(4):
        rig.step()
    runs[gone].session.close()
    late = rig.open("late")
    late_call = late.submit(segment_of("sampler"))
    for name, run in runs.items():
        if name != gone:
            assert ended(rig, run, calls[name]) == alone(name), name
    assert late.segment(late_call) == alone("sampler")
    for run in (*runs.values(), late):
        run.session.close()
    rig.drain()
    rig.assert_all_free()


def test_what_samplers_carry_comes_with_rows_that_stay_when_others_leave() -> None:
    """Without sources: control hands back what it was handed."""
    rig = Rig()
    runs = [rig.open(str(number)) for number in range(3)]
    lengths = (9, 4, 9)
    call = msgspec.structs.replace(segment_of("sampler"), max_tokens=9)
    calls = [
        run.submit(msgspec.structs.replace(call, max_tokens=length)) for run, length in zip(runs, lengths, strict=True)
    ]
    rig.drain()
    for run, one, length in zip(runs, calls, lengths, strict=True):
        assert run.segment(one).sampler_state == {"count": 4.0 + length}
    counts = [
        [state.values()["count"] for state in batch.decodes.states if state is not None]
        for batch in rig.executor.batches[1:]
    ]
    assert counts == [[4.0 + num] * (3 if num < 4 else 2) for num in range(1, 9)]


@pytest.mark.parametrize("index", [0, 1, 3])
@pytest.mark.parametrize("bans", [False, True])
@pytest.mark.parametrize("name", ["watched", "watched sampler"])
def test_a_veto_takes_a_row_out_of_the_group_at_once_and_what_runs_of_it_is_wasted(
    index: int, bans: bool, name: str
) -> None:
    found = []
    for is_ahead in (False, True):
        rig = Rig(is_ahead=is_ahead)
        runs = {kind: rig.open(kind) for kind in ("plain", name)}
        calls = {kind: run.submit(segment_of(kind)) for kind, run in runs.items()}
        for _ in range(6):
            rig.step()
        runs[name].final(calls[name])
        before = runs[name].session.open_calls[calls[name]].decoding
        assert before is not None
        assert runs[name].now(Veto(handle=int(calls[name]), index=index, ban=bans)).error is None
        assert runs[name].session.open_calls[calls[name]].decoding is None
        rig.controller.check_integrity()
        num_batches = len(rig.executor.batches)
        found.append(ended(rig, runs[name], calls[name]))
        again = [len(batch.rows) for batch in rig.executor.batches[num_batches:]]
        assert sum(again) == (bans or not index), "a row of its own for the place alone, if what may be is said"
        assert runs["plain"].segment(calls["plain"]) == alone("plain")
        assert (rig.controller._counts.num_wasted_rows > 0) == is_ahead
    assert found[0] == found[1]
    assert (found[0].tokens == alone(name).tokens) == (not bans)
    assert found[0].tokens[:index] == alone(name).tokens[:index]


def test_a_window_that_is_full_holds_one_row_and_no_other() -> None:
    rig = Rig(is_ahead=True)
    held, free = rig.open("held"), rig.open("free")
    call = held.submit(msgspec.structs.replace(segment_of("watched"), watch=Watch(3)))
    other = free.submit(segment_of("plain"))
    rig.drain()
    assert held.final(call) is None
    assert [len(batch.decodes) for batch in rig.executor.batches] == [0, 2, 2, *[1] * 9]
    assert free.segment(other) == alone("plain")
    while held.final(call) is None:
        num_tokens = max(part.first + len(part.tokens) for part in held.parts[call])
        assert held.now(Acknowledge(handle=int(call), num_tokens=num_tokens)).error is None
        rig.drain()
    assert held.segment(call) == alone("watched")
    assert not any(batch.rows for batch in rig.executor.batches[1:])


def test_what_a_wasted_row_fails_with_is_nobodys() -> None:
    """Though its segment has a row in the step behind that one again."""
    rig = Rig(is_ahead=True)
    run = rig.open("a")
    call = run.submit(segment_of("watched"))
    for _ in range(6):
        rig.step()
    run.final(call)
    tokens = [token for part in run.parts[call] for token in part.tokens]
    assert run.now(Veto(handle=int(call), index=2, ban=False)).error is None
    rig.executor.fail_rows = dict.fromkeys(tokens, InternalError("nobody should hear").info())
    rig.step()
    rig.executor.fail_rows = {}
    assert rig.controller._counts.num_wasted_rows
    assert ended(rig, run, call) == alone("watched")


def test_a_watched_sampler_that_stops_unsure_carries_what_one_that_nobody_watches_does() -> None:
    found = []
    for watch in (None, Watch(64)):
        rig = Rig()
        run = rig.open("a")
        fields = {
            "stop_entropy": 8.0,
            "sampler": COUNTER,
            "sampler_state": {"count": 1.0},
            "tokens": (7,),
            "watch": watch,
        }
        found.append(ended(rig, run, run.submit(msgspec.structs.replace(segment_of("unsure"), **fields))))
    assert found[0] == found[1]
    assert (found[0].reason, len(found[0].tokens), found[0].sampler_state) == ("entropy", 4, {"count": 6.0})


@pytest.mark.parametrize("max_tokens", range(3, 8))
@pytest.mark.parametrize("num_steps", range(2, 8))
def test_a_veto_counts_though_the_row_that_ends_the_segment_is_under_way(max_tokens: int, num_steps: int) -> None:
    rig = Rig(is_ahead=True)
    runs = {name: rig.open(name) for name in ("plain", "watched")}
    calls = {name: run.submit(segment_of(name, max_tokens)) for name, run in runs.items()}
    for _ in range(num_steps):
        rig.step()
    rig.begin()
    watched, call = runs["watched"], calls["watched"]
    assert watched.final(call) is None
    assert watched.now(Veto(handle=int(call), index=0, ban=False)).error is None
    rig.drain()
    assert watched.final(call) is None
    parts = [part for part in watched.parts[call] if part.num_vetoes]
    told = [token for part in parts for token in part.tokens]
    assert told == list(alone("watched", max_tokens).tokens)
    assert [part.first for part in parts] == list(range(max_tokens))
    assert ended(rig, watched, call) == alone("watched", max_tokens)
    assert runs["plain"].segment(calls["plain"]) == alone("plain", max_tokens)
