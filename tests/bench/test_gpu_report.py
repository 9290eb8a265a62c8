"""The speed report of a GPU, tried without one: which sections run where, what is good, and that streams are timed."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))

import into_docs
import lanes
import side_by_side
import speed
from figures import PLAN, SECTIONS, arriving, goals, peers
from figures.arriving import Judged, arrivals_s
from figures.decoding import read_bytes
from figures.picture import draw, points
from figures.report import Bench, Section, percentile
from figures.streams import run_batch, system_over
from figures.suites import figures_of
from lanes import Job, Lane, Outcome, make_lanes, run_lanes
from written import Report

NAMES = [one.name for one in SECTIONS]


def test_parts_that_run_side_by_side_are_every_test_once() -> None:
    parts = (*side_by_side.PARTS, *side_by_side.ALONE)
    files = dict.fromkeys(file for file, _ in parts)
    assert sorted(files) == sorted(one.name for one in side_by_side.FOLDER.glob("test_*.py"))
    for file in files:
        *some, last = (chosen for name, chosen in parts if name == file)
        assert last == (f"not ({' or '.join(some)})" if some else "")


def test_every_section_is_planned_and_those_that_share_an_engine_are_apart_from_others() -> None:
    assert {one.name for _, some in PLAN for one in some} == set(NAMES)
    assert all(len(some) == 1 or all(one.shares_system for one in some) for _, some in PLAN)
    planned = [(shape, one.name) for shape, some in PLAN for one in some]
    assert len(set(planned)) == len(planned)


def test_jobs_come_in_the_plans_order_and_a_shape_stands_in_for_all_models() -> None:
    some = [(job.shape, job.names) for job in speed.jobs_of(["tpot", "quality", "ttft"])]
    assert some[:3] == [("llama-8b", ("tpot",)), ("llama-1b", ("tpot",)), ("llama-8b", ("ttft",))]
    assert ("", ("quality",)) in some
    tried = [(job.shape, job.names) for job in speed.jobs_of(["tpot", "prefill", "quality", "ttft"], ["tiny", "other"])]
    assert tried == [
        ("tiny", ("tpot", "prefill")), ("other", ("tpot", "prefill")), ("tiny", ("ttft",)), ("other", ("ttft",)),
        ("", ("quality",)),
    ]  # fmt: skip
    assert [job.num_gpus for job in speed.jobs_of(["ranks", "noise"])] == [1, 2]


def _words(job: Job, seconds: float) -> list[str]:
    return [sys.executable, "-c", job.names[0]]


async def _follow_lanes(jobs: list[Job], num_lanes: int, seconds: float = 60.0) -> dict[Job, Outcome]:
    found: dict[Job, Outcome] = {}
    run_lanes(jobs, make_lanes(num_lanes, "cuda"), time.monotonic() + seconds, _words, found.__setitem__)
    return found


async def test_each_lane_has_a_gpu_and_cores_of_its_own() -> None:
    say = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['OMP_NUM_THREADS'], os.sched_getaffinity(0))"
    shown = f"{say}; open({{!r}}, 'w').close(); import select\nwhile not os.path.exists({{!r}}): pass"
    before = os.sched_getaffinity(0)
    found = await _meeting(shown)
    assert os.sched_getaffinity(0) == before
    lines = sorted(outcome.lines[0] for outcome in found.values())
    cores = sorted(before)
    half = len(cores) // 2
    assert lines == [f"0 2 {set(cores[:half])}", f"1 2 {set(cores[half : 2 * half])}"]


async def _meeting(shown: str) -> dict[Job, Outcome]:
    """Two jobs, each of which ends when the other has begun: so both lanes have one."""
    with tempfile.TemporaryDirectory() as folder:
        one, other = f"{folder}/one", f"{folder}/other"
        return await _follow_lanes([Job("", (shown.format(*both),), 30) for both in ((one, other), (other, one))], 2)


async def test_a_job_that_fails_or_hangs_leaves_the_others_and_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "HUNG_S", 0.0)
    fails = Job("", ("import sys; print('before', flush=True); sys.exit('broken')",), 30)
    hangs = Job("", ("print('begun', flush=True); import signal; signal.pause()",), 0.4, start_s=0.6)
    goes = Job("", ("print('went')",), 30)
    found = await _follow_lanes([fails, hangs, goes], 1)
    assert found[goes].lines == ["went"]
    assert found[goes].status == 0
    assert found[fails].status == 1
    assert found[fails].lines[0] == "before"
    assert "broken" in found[fails].lines
    assert found[hangs].status != 0
    assert found[hangs].lines[0] == "begun"


def test_what_ends_the_run_ends_its_jobs_and_leaves_what_they_had_said() -> None:
    """The first job asks for the end of all politely, as `timeout` does, and hangs."""
    asks = "import os, signal; print('begun', os.getpid(), flush=True); os.kill(os.getppid(), 15); signal.pause()"
    found: dict[Job, Outcome] = {}
    jobs = [Job("", (asks,), 60), Job("", ("print('never')",), 60)]
    with pytest.raises(KeyboardInterrupt):
        run_lanes(jobs, make_lanes(1, "cpu"), time.monotonic() + 60, _words, found.__setitem__)
    assert list(found) == jobs[:1]
    said, process_id = found[jobs[0]].lines[0].split()
    assert said == "begun"
    with pytest.raises(ProcessLookupError):
        os.kill(int(process_id), 0)


async def test_a_job_for_which_there_is_no_time_is_left_out_and_said_so() -> None:
    late, short = Job("llama-8b", ("print(1)",), 30, start_s=1000.0), Job("", ("print(2)",), 1, start_s=1.0)
    found = await _follow_lanes([late, short], 1)
    assert "s were left" in found[late].why_not
    assert found[short].lines == ["2"]


def test_a_goal_is_met_missed_or_not_measured_by_the_best_figure() -> None:
    most = goals.Goal("T", {"1": ("a", 1.0), "2": ("b", 2.0)})
    assert most.row({"a": [3.0, 0.9], "b": [2.0]}) == ("T", "1 · 2", "≤ 1 · ≤ 2", "0.900 · 2.00", "met")
    assert most.row({"a": [1.1], "b": [2.0]})[-1] == "**missed** at 1"
    assert most.row({"b": [2.0]})[-2:] == ("– · 2.00", "met; not measured: 1")
    assert most.row({})[-1] == "not measured"
    least = goals.Goal("T", {"x": ("gain", "said"), "y": ("free", None)}, is_least=True)
    assert least.row({"gain": [1.0, 1.9], "said": [2.0], "free": [5.0]})[2:] == ("≥ 1.9 · –", "1.90 · 5.00", "met")
    assert least.row({"gain": [1.89], "said": [2.0]})[-1] == "**missed** at x; not measured: y"


def test_all_goals_of_the_table_have_names_that_sections_give(tmp_path: Path) -> None:
    """Of those that are put together from a shape and a batch, at least the first part."""
    given = {"tpot", "worker", "http", "prefill", "host", "host_mean", "core", "mechanisms", "agents", "ttft",
             "goodput", "quality", "noise", "cost", "together", "request", "request_http"}  # fmt: skip
    names = [name for one in goals.GOALS for name, _ in one.figures.values()]
    assert {name.partition("/")[0] for name in names} == given
    assert len(set(names)) == len(names)
    source = "".join(one.read_text() for one in Path(goals.__file__).parent.glob("*.py"))
    assert all(f'"{one}"' in source for one in given)


def test_a_whole_request_is_held_to_what_the_goal_leaves_of_it() -> None:
    goal = next(one for one in goals.GOALS if one.title.startswith("Whole request of 8B, ms, over HTTP"))
    row = goal.row({"request_http/llama-8b/256": [2050.0, 1980.0], "request_allowed/llama-8b/256": [1985.0],
                    "request_http/llama-8b/128": [1300.0], "request_allowed/llama-8b/128": [1206.0]})  # fmt: skip
    assert "≤ 1,206 · ≤ 1,985" in row[2]
    assert row[4].startswith("**missed** at 128;")


def test_figures_are_kept_as_they_come_and_a_suite_s_rows_become_some(tmp_path: Path) -> None:
    bench = Bench("tiny", "cpu", 1, found_at=tmp_path / "found.jsonl", prefix="together")
    bench.found("tpot", "tiny", 32, value=1.5)
    bench.found("tpot", "tiny", 32, value=1.25)
    assert goals.read_found(tmp_path / "found.jsonl") == {"together/tpot/tiny/32": [1.5, 1.25]}
    assert goals.read_found(tmp_path / "none") == {}
    rows = [
        {"case": "mechanism=segment/n=32", "metric": "tpot_ms", "value": 5.0, "ratio": 1.02},
        {"case": "mechanism=segment/n=32", "metric": "added_ms", "value": 0.1},
        {"case": "of=another", "metric": "added_ms", "value": 7.0},
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    assert figures_of(tmp_path / "rows.json", r"mechanism=(\w+)") == {"segment/tpot_ms": 1.02, "segment/added_ms": 0.1}


def test_a_step_of_many_rows_reads_most_experts_and_no_more_of_other_weights() -> None:
    assert read_bytes(Bench("llama-1b", "cuda", 1), 100, 256) == 100
    bench = Bench("qwen3-30b-a3b", "cuda", 1)
    assert read_bytes(bench, 6_000_000_000, 1) == pytest.approx(6e9)
    all_of_them = 6e9 + 48 * 3 * 2048 * 768 * 2 * 120
    assert 0.999 * all_of_them < read_bytes(bench, 6_000_000_000, 256) < all_of_them
    assert 0.85 * all_of_them < read_bytes(bench, 6_000_000_000, 32) < 0.9 * all_of_them


def test_the_picture_has_what_was_measured_beside_what_others_did(tmp_path: Path) -> None:
    found = {f"tpot/llama-1b/{batch}": [9.0, 1.0 + number] for number, batch in enumerate(peers.BATCHES)}
    assert points(found, "tpot", "llama-1b") == [(1, 1.0), (32, 2.0), (128, 3.0), (256, 4.0)]
    assert points(found, "http", "llama-1b") == []
    draw(found, tmp_path / "picture.svg")
    assert "<svg" in (tmp_path / "picture.svg").read_text()


def test_a_report_is_whole_at_any_moment(tmp_path: Path) -> None:
    one, other, last = Job("tiny", ("tpot",), 1), Job("tiny", ("http",), 1), Job("", ("quality",), 1)
    report = Report(tmp_path / "report.md", {"device": "none"}, "today", [one, other, last])
    report.done(other, Outcome(["## Over HTTP", "FAILED: http"], status=1, took_s=3.0))
    report.done(one, Outcome(["## From token to token"], took_s=2.0))
    said = (tmp_path / "report.md").read_text()
    assert said.index("## Goals and figures") < said.index("## From token to token") < said.index("FAILED: http")
    assert "not begun, or not ended: quality of this machine" in said
    report.done(last, Outcome(why_not="0 s were left"))
    said = (tmp_path / "report.md").read_text()
    assert "left out: quality of this machine: 0 s were left" in said
    assert "(quality of this machine: " not in said


@pytest.mark.parametrize("num_gpus", [1, 2])
def test_what_takes_all_gpus_is_last_and_by_itself_or_left_out(
    num_gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "words_of", lambda arguments, report, job, seconds: _words(Job("", ("print(1)",), 1), 1))
    monkeypatch.setattr(side_by_side, "words", lambda file, chosen: [sys.executable, "-c", f"print('ran {file}')"])
    jobs = list(speed.jobs_of(["tpot", "ranks"]))
    report = Report(tmp_path / "report.md", {}, "today", jobs)
    arguments = SimpleNamespace(seconds=500.0, device="cuda", tests=True, lanes=0)
    ends: dict[str, float] = {}

    def noted(some: list[Job], lanes: list[Lane], ends_s: float, *rest: object) -> None:
        ends.update({job.names[0]: ends_s for job in some})
        run_lanes(some, lanes, ends_s, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(speed, "run_lanes", noted)
    assert speed.run_all(arguments, jobs, num_gpus, report)  # type: ignore[arg-type]
    if num_gpus == 2:
        ranks = next(job for job in jobs if job.names == ("ranks",))
        assert ends["tpot"] + ranks.start_s + ranks.budget_s < ends["ranks"], "time is kept for it"
    said = report.path.read_text()
    assert ("test_two_gpus.py : ran test_two_gpus.py" in said) is (num_gpus == 2)
    assert "test_real_weights.py : ran test_real_weights.py" in said
    assert ("left out: ranks of llama-8b: torch sees 1 GPU, and it takes 2" in said) is (num_gpus == 1)
    assert "not begun" not in said


def test_a_report_takes_the_place_of_the_last_one_in_the_documents(tmp_path: Path) -> None:
    page = into_docs.DOCS / "gpu-figures.md"
    by_hand = page.read_text().partition(into_docs.MARK)[0]
    (tmp_path / "gpu-figures.md").write_text(page.read_text())
    report = Report(tmp_path / "report.md", {"device": "two of a kind"}, "some day", [])
    report.found_at.write_text('["tpot/llama-1b/32", 1.25]\n')
    report.save()
    for _ in range(2):
        into_docs.into_docs(report.path, tmp_path)
    written = (tmp_path / "gpu-figures.md").read_text()
    assert written.startswith(by_hand + into_docs.MARK)
    assert written.count("The engine on a GPU, some day") == 1
    assert "| device | two of a kind |" in written
    assert "– · 1.25 · – · –" in written
    assert "(gpu-figures.svg)" in written
    assert (tmp_path / "gpu-figures.svg").exists()
    (tmp_path / "gpu-figures.md").write_text("no place")
    with pytest.raises(ValueError, match="has no '## The last run'"):
        into_docs.into_docs(report.path, tmp_path)
    (tmp_path / "gpu-figures.md").write_text(written)
    report.path.write_text("# cut off")
    with pytest.raises(ValueError, match="no goals and figures"):
        into_docs.into_docs(report.path, tmp_path)


def test_one_command_writes_a_report_without_a_gpu(tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    words = ["--device", "cpu", "--shapes", "tiny", "--only", "products", "--seconds", "90", "--report", str(report)]
    ended = subprocess.run([sys.executable, speed.__file__, *words], capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = report.read_text()
    assert "| device | CPU |" in said
    assert "## Products of a layer: tiny" in said
    assert "(products of tiny: " in said
    assert "| Prompts of 8B, tokens/s | 64 of 128" in said


def test_sections_are_chosen_by_name_and_by_model() -> None:
    assert speed.chosen_names("prefill,tpot:llama-1b", "") == ["prefill", "tpot:llama-1b"]
    assert speed.chosen_names("", "tpot") == [name for name in NAMES if name != "tpot"]
    with pytest.raises(ValueError, match="no section speed, tpot:tiny; known are tpot"):
        speed.chosen_names("tpot,speed,tpot:tiny", "")
    assert [str(job) for job in speed.jobs_of(["tpot:llama-3b", "noise"])] == ["noise of llama-1b", "tpot of llama-3b"]


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

    arguments = SimpleNamespace(shapes=["tiny"], device="cpu", seed=1, seconds=60.0, found=None)
    sections = [Section("f", "Fails", 10, fail), Section("g", "Goes", 10, lambda bench: _say(bench))]
    assert not await speed.run_here(arguments, sections)  # type: ignore[arg-type]
    said = capsys.readouterr().out
    assert "FAILED: f: ValueError: on purpose" in said
    assert "went" in said


async def test_goodput_stands_beside_what_the_device_can_carry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(arriving, "GOODPUT_S", 0.2)
    async with system_over("tiny", "cpu") as system:
        await arriving.goodput(Bench("tiny", "cpu", 1, system=system, found_at=tmp_path / "found"))
    assert list(goals.read_found(tmp_path / "found")) == ["goodput/tiny"]
    assert "requests/s at best, " in capsys.readouterr().out


async def _say(bench: Bench) -> None:
    bench.say("went")
