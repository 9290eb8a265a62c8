"""Programs of several segments with every feature that a segment has, in a pool that holds a few of them, interrupted,
vetoed, closed and hit by faults at random: who is not ended by that equals the step-by-step loop."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from loopwright.control.config import ControlConfig
from loopwright.control.policies import PolicyName
from loopwright.core.calls import ClearQueue, FreePages, Generate, KvWindow, SetPriority
from loopwright.core.ids import CallId, PageName
from loopwright.core.results import Segment
from loopwright.core.watch_calls import Watch

from .fake_executor import mix
from .fake_grammars import FakeCompiler, Places
from .reference import NaiveContext
from .rig import QUEUE, Rig
from .step_by_step import LETTERS, OPTIONS, PAGE_SIZE, PLACES, Verdict, call_of, step_by_step
from .watcher import Watcher, verdict_of

BEGINNINGS = ([], list(range(2, 10)), list(range(2, 15)))  # that programs have in common
ENDED_BY_FAULT = {"InternalError", "Poisoned", "OutOfPages"}  # the last: what a window left cannot be dropped


@dataclass
class Seen(NaiveContext):
    """As the naive context; a token sees its window."""

    window: KvWindow | None = None
    positions: list[int] = field(default_factory=list)

    def run(self, tokens: Sequence[int], positions: Sequence[int]) -> list[int]:
        hiddens = []
        for token, position in zip(tokens, positions, strict=True):
            seen = [one for one, place in zip(self.values, self.positions, strict=True) if self.sees(position, place)]
            self.values.append(mix(token, position, *seen, mix(token, position)))
            self.positions.append(position)
            hiddens.append(self.values[-1])
        return hiddens

    def sees(self, own: int, other: int) -> bool:
        if self.window is None:
            return True
        border = max(0, (own + 1 - self.window.size) // PAGE_SIZE * PAGE_SIZE)
        return other < self.window.sinks or other >= border

    def cut(self, num_tokens: int) -> None:
        del self.values[num_tokens:], self.positions[num_tokens:]


class Program:
    """One context, its segments one after the other, and what the loop says to them."""

    def __init__(self, rig: Rig, number: int, rng: random.Random) -> None:
        self.rng, self.rig = rng, rig
        self.run = rig.open(f"program {number}")
        self.tokens = [*rng.choice(BEGINNINGS), *(rng.randrange(2, 64) for _ in range(rng.randint(1, 9)))]
        self.window = KvWindow(size=rng.randint(1, 12), sinks=rng.choice([0, 0, 3, 4])) if rng.random() < 0.4 else None
        self.naive = Seen(window=self.window)
        self.names: list[PageName] = []
        self.there: list[int] = []  # the positions that have KV, in the order of their places
        self.num_left, self.num_begun, self.num_checked = rng.randint(1, 5), 0, 0
        self.is_over = False
        self._begin()

    def act(self) -> None:
        """One thing that the program does on its own."""
        rng = self.rng
        if self.is_over:
            return
        if self.run.final(self.call_id) is not None:
            self._take()
        elif rng.random() < 0.004:
            self.end()
        elif rng.random() < 0.01:
            self.is_interrupted = True
            if self.watcher is not None:
                self.watcher.take()
                self.watcher.acknowledge()
                self.watcher.has_left = True
            self.run.session.interrupt(self.call_id)
        elif rng.random() < 0.02:
            self.run.now(SetPriority(queue=QUEUE, priority=rng.choice([-1, 0, 1])))
        elif self.watcher is not None and rng.random() < 0.6:
            self.watcher.look(acknowledges=rng.random() < 0.5)

    def end(self) -> None:
        self.is_over = True
        self.run.session.close()

    def _begin(self) -> None:
        rng = self.rng
        option = rng.choice(list(OPTIONS))
        watch = Watch(rng.randint(1, 9)) if rng.random() < 0.4 else None
        call, self.places = call_of(option, rng.randrange(1000), watch)
        first = len(self.naive.positions)
        inputs = self.tokens[first:]
        self.grow_from = PageName(100 * (self.num_begun + 1))
        window = None if self.window is None else msgspec.structs.replace(self.window, positions=tuple(self.there))
        self.call: Generate = msgspec.structs.replace(
            call, pages=tuple(self.names), grow_from=self.grow_from, kv_len=len(self.there), tokens=tuple(inputs),
            positions=tuple(range(first, first + len(inputs))), window=window,
            max_tokens=rng.randint(1, 9 if self.places is not None else 25),
        )  # fmt: skip
        self.num_begun += 1
        self.is_interrupted = False
        self.verdict = verdict_of(rng.randrange(1000), 30, rng.choice([None, None, 4]), self.places)
        self.watcher = None
        if watch is None:
            self.call_id: CallId = self.run.submit(self.call)
        else:
            self.watcher = Watcher(self.run, self.call, self.verdict)
            self.call_id = self.watcher.call_id

    def _take(self) -> None:
        """Checks the segment that is over, and begins the next."""
        error = self.run.error_type(self.call_id)
        if error == "Cancelled":
            self.run.submit(ClearQueue(queue=QUEUE))
        elif error is not None:
            assert error in ENDED_BY_FAULT, self.run.error(self.call_id)
            return self.end()
        else:
            self._check(self.run.segment(self.call_id))
        self.num_left -= 1
        missing = [place for place in self.naive.positions if place not in self.there]
        if self.num_left <= 0 or any(self.naive.sees(len(self.naive.positions), place) for place in missing):
            return self.end()
        if len(self.tokens) == len(self.naive.positions):
            self.tokens.append(self.rng.randrange(2, 64))
        self._begin()
        return None

    def _check(self, segment: Segment) -> None:
        keep: Verdict = lambda index, token, num_vetoes: "keep"  # noqa: E731
        whole = Seen(list(self.naive.values), self.window, list(self.naive.positions))
        expected = step_by_step(self.call, self.verdict if self.watcher else keep, self.places, whole)
        if segment.reason == "interrupted" and self.is_interrupted:
            assert list(segment.tokens) == expected.tokens[: len(segment.tokens)]
        else:
            assert list(segment.tokens) == expected.tokens
            assert (segment.reason, segment.stop) == (expected.reason, expected.stop)
        num_before = len(self.naive.positions)
        kept = [*self.tokens[num_before:], *segment.tokens[: segment.num_kept]]
        num_run = segment.kv_len - len(self.there)
        assert 0 <= num_run <= len(kept)
        if segment.tokens:
            assert num_run >= len(kept) - 1
        self.naive.run(kept, range(num_before, num_before + len(kept)))
        self.naive.cut(num_before + num_run)
        self.tokens = [*self.tokens[:num_before], *kept]
        self._account(segment, [*self.there, *range(num_before, num_before + num_run)])
        self.num_checked += 1

    def _account(self, segment: Segment, places: list[int]) -> None:
        num_grown = segment.num_pages - len(self.names)
        listed = [*self.names, *(PageName(self.grow_from + one) for one in range(num_grown))]
        left = [page for page, name in enumerate(listed) if name not in segment.freed]
        assert len(listed) - len(left) == len(segment.freed)
        assert self.window is not None or not segment.freed
        pages = [places[page * PAGE_SIZE : page * PAGE_SIZE + PAGE_SIZE] for page in left]
        self.names = [listed[page] for page in left]
        self.there = [place for page in pages for place in page]
        if surplus := self.names[-(-len(self.there) // PAGE_SIZE) :]:
            assert self.run.now(FreePages(queue=QUEUE, pages=tuple(surplus))).error is None
            del self.names[-len(surplus) :]


def play(
    seed: int, policy: PolicyName, faults: float, *, is_ahead: bool = False, num_programs: int = 8, num_turns: int = 400
) -> int:
    """How many segments were checked."""
    rng = random.Random(seed)
    config = ControlConfig(
        max_batch_rows=rng.choice([2, 4, 64]), max_batch_tokens=rng.choice([70, 9, 512]) + 64, policy=policy,
        policy_calls=2, prefix_cache=rng.random() < 0.7,
    )  # fmt: skip
    places: dict[str, Places] = {"g": PLACES}
    rig = Rig(
        num_blocks=rng.choice([16, 22, 30]), grammars=FakeCompiler(**places), token_bytes=LETTERS, config=config,
        is_ahead=is_ahead,
    )  # fmt: skip
    programs = [Program(rig, number, rng) for number in range(num_programs)]
    for turn in range(60 * num_turns):
        for program in programs:
            program.act()
        if turn < num_turns and rng.random() < 0.1:
            programs.append(Program(rig, len(programs), rng))
        if not rig.begin():
            rig.clock.advance(rng.choice([0.001, 0.03]))
            if all(program.is_over for program in programs):
                break
            continue
        for program in programs:
            program.act()
        if rng.random() < faults:
            rig.executor.fault = RuntimeError("device lost")
        rig.end()
    assert all(program.is_over for program in programs), "somebody waits for ever"
    rig.assert_all_free()
    return sum(program.num_checked for program in programs)


@pytest.mark.parametrize("policy", ["adaptive", "eager", "k-only", "t-only"])
@pytest.mark.parametrize(("seed", "faults"), [(1, 0.0), (2, 0.01)])
def test_segments_of_all_kinds_in_a_small_pool_equal_the_loop(seed: int, faults: float, policy: PolicyName) -> None:
    assert play(seed, policy, faults) > 10


@pytest.mark.parametrize(("seed", "faults"), [(1, 0.0), (2, 0.01), (3, 0.01), (4, 0.0)])
def test_and_so_they_do_when_steps_are_ahead(seed: int, faults: float) -> None:
    assert play(seed, "adaptive", faults, is_ahead=True) > 10
