"""GET /metrics: what the layers counted, in Prometheus' text. Never counts anything: it asks who does. Used by app.

The registry belongs to one application. Counters of a process that died stay as they were when it was last asked:
another takes its place, and no sum goes down.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from loopwright.core.metrics import METRICS, NOTHING_MEASURED, Measured, Metric, Series
from loopwright.core.runs import Runs
from loopwright.server.openapi import takes

PREFIX = "loopwright:"


class MetricsRoute:
    """What a Prometheus server talks to."""

    def __init__(self, runs: Runs, own: Callable[[], Sequence[Series]] = tuple) -> None:
        """`own` is what the server measures beside its runs."""
        self._runs = runs
        self._own = own
        self._last = NOTHING_MEASURED
        self._registry = CollectorRegistry(auto_describe=False)
        self._collector = _Collector()
        self._registry.register(self._collector)

    @takes(answer={"type": "string"}, media="text/plain")
    async def metrics(self, request: Request) -> Response:
        """GET /metrics: what was counted, for Prometheus."""
        measured = await self._runs.metrics()
        gone = {name: tuple(filter(_is_sum, series)) for name, series in self._last.sources.items()}
        self._last = Measured(gone) | measured
        self._collector.series = [*self._own(), *(one for series in self._last.sources.values() for one in series)]
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), headers={"content-type": content_type})


class _Collector(Collector):
    """Hands the registry what was measured last."""

    def __init__(self) -> None:
        self.series: list[Series] = []

    def collect(self) -> Iterator[Family]:
        by_name: defaultdict[str, list[Series]] = defaultdict(list)
        for one in self.series:
            by_name[one.metric].append(one)
        for metric in METRICS.values():
            if by_name[metric.name] or not metric.labels:
                yield _family(metric, by_name[metric.name])


def _family(metric: Metric, series: Iterable[Series]) -> Family:
    """All series of one metric, those of equal labels added up. Without labels there is always one."""
    name = PREFIX + metric.name
    sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
    counts: dict[tuple[str, ...], list[int]] = {}
    for one in series:
        sums[one.labels] += one.value
        known = counts.setdefault(one.labels, [0] * len(one.counts))
        counts[one.labels] = [before + more for before, more in zip(known, one.counts, strict=True)]
    if not metric.labels:
        sums.setdefault((), 0.0)
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(name, metric.meaning, labels=metric.labels)
        for labels, value in sums.items():
            histogram.add_metric(labels, _buckets(metric, counts[labels]), value)
        return histogram
    family = (CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily)(
        name, metric.meaning, labels=metric.labels
    )
    for labels, value in sums.items():
        family.add_metric(labels, value)
    return family


def _buckets(metric: Metric, counts: Iterable[int]) -> list[tuple[str, float]]:
    """Each bound with how many lie at or below it."""
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip([*map(str, metric.bounds), "+Inf"], counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets


def _is_sum(series: Series) -> bool:
    return METRICS[series.metric].kind != "gauge"
