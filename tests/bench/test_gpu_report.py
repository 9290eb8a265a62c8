"""The speed report of a GPU, tried without one: which sections run where, what is good, and that streams are timed."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))

import side_by_side
import speed
from figures import SECTIONS
from figures.arriving import Judged, arrivals_s
from figures.report import Bench, Section, percentile
from figures.streams import run_batch, system_over


async def _nothing(bench: Bench) -> None:
    """Measures nothing."""


SHARING = Section("a", "A", 1, _nothing, ("llama-1b", "llama-8b"), shares_system=True)
OTHER = Section("b", "B", 1, _nothing)
LATER = Section("c", "C", 1, _nothing, ("llama-8b",), shares_system=True)


def test_parts_that_run_side_by_side_are_every_test_once() -> None:
    files = dict.fromkeys(file for file, _ in side_by_side.PARTS)
    assert sorted(files) == sorted(one.name for one in side_by_side.FOLDER.glob("test_*.py"))
    for file in files:
        *some, last = (chosen for name, chosen in side_by_side.PARTS if name == file)
        assert last == (f"not ({' or '.join(some)})" if some else "")


def test_sections_of_a_model_share_a_process_and_others_have_their_own() -> None:
    assert list(speed.groups([SHARING, OTHER, LATER], [])) == [
        ("llama-1b", [SHARING]),
        ("llama-8b", [SHARING, LATER]),
        ("", [OTHER]),
    ]
    assert list(speed.groups([SHARING, OTHER, LATER], ["tiny"])) == [("tiny", [SHARING, LATER]), ("", [OTHER])]


def test_sections_are_chosen_by_name_in_the_order_that_was_asked_for() -> None:
    assert [one.name for one in speed.chosen_sections("prefill,tpot", "")] == ["prefill", "tpot"]
    assert [one.name for one in speed.chosen_sections("", "tpot")] == [
        one.name for one in SECTIONS if one.name != "tpot"
    ]
    with pytest.raises(ValueError, match="no section speed; known are tpot"):
        speed.chosen_sections("tpot,speed", "")


def test_a_request_is_good_if_its_first_token_and_nearly_all_gaps_are_in_time() -> None:
    def stream(ttft_s: float, gaps_s: list[float]) -> SimpleNamespace:
        return SimpleNamespace(times_s=[0.0], ttft_s=ttft_s, gaps_s=gaps_s)

    streams = [stream(0.4, [0.01] * 99 + [0.2]), stream(0.6, [0.01]), stream(0.1, [0.01] * 90 + [0.2] * 10)]
    judged = Judged.of([*streams, SimpleNamespace(times_s=[])])  # type: ignore[list-item]
    assert (judged.num_good, judged.num_requests) == (1, 4)


def test_arrivals_are_the_same_for_the_same_seed() -> None:
    times_s = arrivals_s(50.0, 40.0, seed=3)
    assert times_s == sorted(arrivals_s(50.0, 40.0, seed=3))
    assert times_s != arrivals_s(50.0, 40.0, seed=4)
    assert 35 < times_s[-1] < 45
    assert len(times_s) == 2000


def test_a_percentile_is_one_of_the_values() -> None:
    assert [percentile([4.0, 1.0, 3.0, 2.0], share) for share in (0.0, 0.5, 0.75, 0.99, 1.0)] == [
        1.0,
        2.0,
        3.0,
        4.0,
        4.0,
    ]


async def test_streams_are_timed_and_a_section_that_fails_leaves_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    async with system_over("tiny", "cpu") as system:
        timing = await run_batch(system, 3, 20, 6)
        assert timing.steady_s > 0
        assert timing.tpot_s > 0
        assert (await system.controller.stats()).num_live_runs == 0

    async def fail(bench: Bench) -> None:
        raise ValueError("on purpose")

    arguments = SimpleNamespace(shapes=["tiny"], device="cpu", seed=1, seconds=60.0)
    sections = [Section("f", "Fails", 10, fail), Section("g", "Goes", 10, lambda bench: _say(bench))]
    assert not await speed.run_here(arguments, sections)  # type: ignore[arg-type]
    said = capsys.readouterr().out
    assert "FAILED: f: ValueError: on purpose" in said
    assert "went" in said


async def _say(bench: Bench) -> None:
    bench.say("went")
