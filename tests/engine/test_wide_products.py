"""Who multiplies thousands of rows: the fastest way that is right, by how often it fills the device; else torch."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from loopwright.engine.cuda import wide_products
from loopwright.engine.cuda.operations import WideUse
from loopwright.engine.cuda.wide_products import TRIED_ROWS, WIDE_ROWS, Run, Way, WideProducts

WEIGHTS = torch.randn(24, 16, generator=torch.Generator().manual_seed(2)).bfloat16()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_products, "SMALLEST", 1)


class Bench:
    """Ways whose times are what it says: each is told by its name, torch's is "torch"."""

    def __init__(self, use: WideUse = "project", **seconds: float) -> None:
        self.use, self.seconds_of, self.ran, self.num_asked = use, {"torch": 4.0, **seconds}, "", 0
        self.ways: list[Way] = []
        self.products = WideProducts(self.ways_of, self.seconds)

    def run(self, name: str, off: float = 0.0) -> Run:
        def multiply(vectors: Tensor, weights: Tensor, out: Tensor) -> None:
            self.ran = name
            found = vectors.float() @ weights.float().T * (1 + off)
            out.copy_(found + out if self.use == "onto" else found)

        return multiply

    def add(
        self, name: str, waves: Callable[[int], float | None] = lambda rows: rows / TRIED_ROWS, off: float = 0.0
    ) -> None:
        self.ways.append(Way(name, self.run(name, off), waves))

    def ways_of(self, use: WideUse, weights: Tensor) -> tuple[Run, Sequence[Way]]:
        self.num_asked += 1
        return self.run("torch"), self.ways

    def seconds(self, run: Callable[[], None]) -> float:
        run()
        return self.seconds_of[self.ran]

    def chosen(self, num_rows: int = TRIED_ROWS) -> str:
        self.products.measure(self.use, WEIGHTS)
        run = self.products.run_for(self.use, num_rows, WEIGHTS)
        return "torch" if run is None else next(way.name for way in self.ways if way.run is run)


@pytest.mark.parametrize("use", ["project", "onto"])
def test_the_fastest_way_multiplies_if_it_is_faster_than_torchs(use: WideUse) -> None:
    bench = Bench(use, slow=5.0, fast=3.0, middling=3.5, hardly=2.98)
    for name in ("slow", "fast", "middling", "hardly"):
        bench.add(name)
    assert bench.chosen() == "fast"
    assert bench.chosen(WIDE_ROWS) == "fast"
    assert bench.num_asked == 1, "once for each size"
    assert Bench(use).chosen() == "torch"
    near = Bench(use, fast=3.99)
    near.add("fast")
    assert near.chosen() == "torch", "nearer than what a measurement is good for"


def test_what_was_not_measured_and_few_rows_are_torchs() -> None:
    bench = Bench(fast=3.0)
    bench.add("fast")
    assert bench.products.run_for("project", TRIED_ROWS, WEIGHTS) is None
    assert bench.chosen(WIDE_ROWS - 1) == "torch"
    assert bench.products.run_for("onto", TRIED_ROWS, WEIGHTS) is None
    assert bench.products.run_for("project", TRIED_ROWS, WEIGHTS[:12]) is None


def test_a_way_that_is_wrong_or_fails_is_none(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(wrong=1.0, failing=1.0, right=3.0, endless=1.0)
    bench.add("wrong", off=0.02)
    bench.add("endless", off=torch.nan)

    def fail(vectors: Tensor, weights: Tensor, out: Tensor) -> None:
        raise RuntimeError("status 15")

    bench.ways.append(Way("failing", fail, lambda rows: 1.0))
    assert bench.chosen() == "torch"
    assert "failing cannot multiply by 24 by 16: status 15" in caplog.text
    bench = Bench(wrong=1.0, right=3.0)
    bench.add("wrong", off=0.02)
    bench.add("right", off=0.001)
    assert bench.chosen() == "right"


def test_other_numbers_of_rows_go_by_how_often_a_way_fills_the_device() -> None:
    """A wave takes as long when it is not full."""
    bench = Bench(large=3.0, small=3.1, some=2.0)
    bench.add("large", lambda rows: 3 * rows / TRIED_ROWS)
    bench.add("small", lambda rows: 31 * rows / TRIED_ROWS)
    bench.add("some", lambda rows: 2.0 if rows == TRIED_ROWS else None)
    assert bench.chosen() == "some"
    assert bench.chosen(TRIED_ROWS // 3) == "torch", "fewer than what counts"
    assert bench.chosen(2 * TRIED_ROWS // 3 - 1) == "large"
    assert bench.chosen(2 * TRIED_ROWS // 3 + 2) == "small"
    alone = Bench(some=2.0)
    alone.add("some", lambda rows: 2.0 if rows == TRIED_ROWS else None)
    assert alone.chosen(WIDE_ROWS) == "torch"


def test_without_memory_to_measure_torch_multiplies() -> None:
    bench = Bench(fast=3.0)

    def fail(vectors: Tensor, weights: Tensor, out: Tensor) -> None:
        raise torch.OutOfMemoryError("none left")

    bench.add("fast")
    bench.ways.append(Way("large", fail, lambda rows: 1.0))
    assert bench.chosen() == "torch"
    assert bench.chosen() == "torch"
    assert bench.num_asked == 1
