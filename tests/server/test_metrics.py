"""GET /metrics: Prometheus' own parser reads what the server says, and finds what the layers counted."""

import pytest
from fake_runs import FakeRuns
from live_server import live_server
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from loopwright.core import metrics
from loopwright.core.instrument import Meter
from loopwright.core.metrics import METRICS, Measured, Series

pytestmark = pytest.mark.anyio

Samples = dict[tuple[str, tuple[str, ...]], float]


def samples(text: str) -> Samples:
    """By name and label values, sorted by label."""
    return {
        (one.name, tuple(value for _, value in sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def runtime(num_runs: int, seconds: float) -> tuple[Series, ...]:
    meter = Meter()
    meter.add(metrics.RUNS_ENDED, num_runs, ("", "chat", "ok"))
    meter.histogram(metrics.E2E_S, ("", "chat")).observe(seconds, num_runs)
    return meter.series([(metrics.RUNS_RUNNING, num_runs, ())])


async def test_what_several_processes_counted_is_added_up() -> None:
    runs = FakeRuns()
    runs.measured = Measured({"runtime-a": runtime(2, 0.2), "runtime-b": runtime(3, 4.0)})
    async with live_server(runs) as live:
        answer = await live.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples(answer.text)
    assert found["loopwright:runs_total", ("ok", "chat", "")] == 5
    assert found["loopwright:num_requests_running", ()] == 5
    assert found["loopwright:num_requests_waiting", ()] == 0, "without labels a metric is there from the start"
    name = "loopwright:e2e_request_latency_seconds"
    assert (found[f"{name}_count", ("chat", "")], found[f"{name}_sum", ("chat", "")]) == (5, pytest.approx(12.4))
    buckets = {labels[0]: value for (one, labels), value in found.items() if one == f"{name}_bucket"}
    assert (buckets["0.1"], buckets["0.3"], buckets["2.5"], buckets["5.0"], buckets["+Inf"]) == (0, 2, 2, 5, 5)


async def test_what_a_process_counted_outlives_it_and_what_it_was_doing_does_not() -> None:
    runs = FakeRuns()
    async with live_server(runs) as live:
        runs.measured = Measured({"runtime-a": runtime(2, 0.2)})
        await live.http.get("/metrics")
        runs.measured = Measured({"runtime-b": runtime(3, 0.2)})
        found = samples((await live.http.get("/metrics")).text)
    assert found["loopwright:runs_total", ("ok", "chat", "")] == 5
    assert found["loopwright:num_requests_running", ()] == 3


async def test_two_servers_of_one_process_know_nothing_of_each_other() -> None:
    first, second = FakeRuns(), FakeRuns()
    first.measured = Measured({"runtime-a": runtime(2, 0.2)})
    async with live_server(first) as one, live_server(second) as other:
        assert "runs_total{" in (await one.http.get("/metrics")).text
        assert "runs_total{" not in (await other.http.get("/metrics")).text


async def test_who_asks_for_openmetrics_gets_it() -> None:
    runs = FakeRuns()
    runs.measured = Measured({"runtime-a": runtime(2, 0.2)})
    async with live_server(runs) as live:
        accept = {"accept": "application/openmetrics-text; version=1.0.0"}
        answer = await live.http.get("/metrics", headers=accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in parse_openmetrics(answer.text)}
    assert {"loopwright:runs", "loopwright:num_requests_running"} <= names or "loopwright_runs" in names


async def test_every_metric_can_be_said() -> None:
    runs = FakeRuns()
    meter = Meter()
    for metric in METRICS.values():
        labels = tuple("x" for _ in metric.labels)
        if metric.kind == "histogram":
            meter.histogram(metric, labels).observe(1)
        else:
            meter.add(metric, 1, labels)
    runs.measured = Measured({"all": meter.series()})
    async with live_server(runs) as live:
        text = (await live.http.get("/metrics")).text
    families = {family.name.removeprefix("loopwright:"): family for family in text_string_to_metric_families(text)}
    assert set(families) == set(METRICS)
    for name, family in families.items():
        assert family.type == METRICS[name].kind
        assert family.documentation == METRICS[name].meaning


async def test_what_is_kept_of_responses_is_counted() -> None:
    runs = FakeRuns(lambda run: run.finish({}))
    async with live_server(runs) as live:
        before = samples((await live.http.get("/metrics")).text)
        for is_kept in (True, True, False):
            await live.openai.responses.create(model="tiny", input="Hi", store=is_kept)
        after = samples((await live.http.get("/metrics")).text)
    names = [(f"loopwright:{name}", ()) for name in ("num_responses_kept", "responses_kept_bytes")]
    assert [before[name] for name in names] == [0, 0]
    assert after[names[0]] == 2
    assert after[names[1]] > 100
