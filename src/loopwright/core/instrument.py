"""The seam between what happens and what is counted of it. Never reads a clock, and never exports anything.

Layers are given an Instrument and tell it; a Meter keeps plain numbers, which the server asks for when somebody looks.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from typing import Protocol

from loopwright.core.metrics import Metric, Series

MAX_LABEL_VALUES = 100
"""Of a label whose values somebody outside chooses: what comes after the first so many is counted as OTHER."""

OTHER = "(other)"
BOUNDED_LABELS = frozenset({"tenant", "program", "tool"})


class Histogram(Protocol):
    """One histogram with its labels, for who observes often."""

    def observe(self, value: float, times: int = 1) -> None:
        """Adds one value, or several equal ones."""
        ...

    def observe_all(self, values: list[float], times: int = 1) -> None:
        """Adds values, each so often, in a time that hardly grows with their number. They are sorted in place."""
        ...


class Instrument(Protocol):
    """What layers tell. `labels` are in the order of the metric's own, but for those that are the same throughout."""

    def add(self, metric: Metric, amount: float = 1, labels: tuple[str, ...] = ()) -> None:
        """Counts."""
        ...

    def histogram(self, metric: Metric, labels: tuple[str, ...] = ()) -> Histogram: ...


class Silent:
    """Counts nothing."""

    def add(self, metric: Metric, amount: float = 1, labels: tuple[str, ...] = ()) -> None: ...

    def histogram(self, metric: Metric, labels: tuple[str, ...] = ()) -> "Silent":
        return self

    def observe(self, value: float, times: int = 1) -> None: ...

    def observe_all(self, values: list[float], times: int = 1) -> None: ...


SILENT = Silent()


class Buckets:
    """A Histogram that remembers."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self._bounds = bounds

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    def observe_all(self, values: list[float], times: int = 1) -> None:
        values.sort()
        start = 0
        for place, bound in enumerate(self._bounds):
            end = bisect_right(values, bound, start)
            self.counts[place] += (end - start) * times
            start = end
        self.counts[-1] += (len(values) - start) * times
        self.sum += sum(values) * times


class Meter:
    """An Instrument that remembers. For one thread. `common` are labels that are the same throughout."""

    def __init__(self, common: Mapping[str, str] | None = None) -> None:
        self._common = common or {}
        self._sums: dict[Metric, dict[tuple[str, ...], float]] = {}
        self._buckets: dict[Metric, dict[tuple[str, ...], Buckets]] = {}
        self._known: dict[str, set[str]] = {}  # values of bounded labels

    def add(self, metric: Metric, amount: float = 1, labels: tuple[str, ...] = ()) -> None:
        sums = self._sums.setdefault(metric, {})
        if labels not in sums:
            labels = self._bounded(metric, labels)
        sums[labels] = sums.get(labels, 0) + amount

    def histogram(self, metric: Metric, labels: tuple[str, ...] = ()) -> Buckets:
        by_labels = self._buckets.setdefault(metric, {})
        if labels not in by_labels:
            labels = self._bounded(metric, labels)
            by_labels.setdefault(labels, Buckets(metric.bounds))
        return by_labels[labels]

    def series(self, gauges: Iterable[tuple[Metric, float, tuple[str, ...]]] = ()) -> tuple[Series, ...]:
        """All that was counted, and what is so now."""
        sums = [
            (metric, labels, value, ())
            for metric, by_labels in self._sums.items()
            for labels, value in by_labels.items()
        ]
        histograms = [
            (metric, labels, one.sum, tuple(one.counts))
            for metric, by_labels in self._buckets.items()
            for labels, one in by_labels.items()
            if any(one.counts)
        ]
        now = [(metric, labels, value, ()) for metric, value, labels in gauges]
        return tuple(
            Series(metric.name, self._all_labels(metric, labels), value, counts)
            for metric, labels, value, counts in (*sums, *histograms, *now)
        )

    def _own_labels(self, metric: Metric) -> list[str]:
        return [name for name in metric.labels if name not in self._common]

    def _all_labels(self, metric: Metric, labels: tuple[str, ...]) -> tuple[str, ...]:
        own = iter(labels)
        return tuple(self._common[name] if name in self._common else next(own) for name in metric.labels)

    def _bounded(self, metric: Metric, labels: tuple[str, ...]) -> tuple[str, ...]:
        """The labels, each value that is one too many replaced."""
        names = self._own_labels(metric)
        assert len(names) == len(labels), f"{metric.name} has the labels {names}"
        return tuple(
            self._bounded_value(name, value) if name in BOUNDED_LABELS else value
            for name, value in zip(names, labels, strict=True)
        )

    def _bounded_value(self, name: str, value: str) -> str:
        known = self._known.setdefault(name, set())
        if value not in known:
            if len(known) >= MAX_LABEL_VALUES:
                return OTHER
            known.add(value)
        return value
