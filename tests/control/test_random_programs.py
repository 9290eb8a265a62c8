"""Random programs of several runs, interleaved at random: every answer equals the naive loop's, and nothing leaks.

A context here is what the sdk's is: page names, a KV length, a queue. Beside it stands a NaiveContext, and each call's
answer is known when it is issued. In the roomy machine no call may fail. In the tight one calls may run out of pages,
and those that depend on them may be poisoned; such a context is dropped and everybody else must not notice.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from loopwright.control.config import ControlConfig
from loopwright.core.calls import AllocatePages, CopyPage, CreateQueue, ForwardText, FreePages, Sampling, SharePages
from loopwright.core.ids import CallId, PageName, QueueName
from loopwright.core.results import Completion

from .fake_executor import choose
from .reference import NaiveContext
from .rig import Rig, RigRun, generate

BLOCK_SIZE = 4
MAX_TOKENS_OF_A_CONTEXT = 40
WELL_KNOWN = (list(range(24)), [*range(10), *range(40, 54)])
PICK = st.integers(0, 999)
EXPECTED_ERRORS = {"OutOfPages", "Poisoned", "NotFound"}  # the last: a fork of a context whose growth failed


@dataclass
class Program:
    """A run, its contexts, and what is to be checked when a call completes."""

    run: RigRun
    contexts: list["RandomContext"] = field(default_factory=list)
    checks: dict[CallId, Callable[[Completion], None]] = field(default_factory=dict)
    num_names: int = 0

    def take_name(self, num: int = 1) -> int:
        self.num_names += num
        return self.num_names - num


@dataclass(eq=False)
class RandomContext:
    """One context: as control has it, and as the naive loop has it."""

    program: Program
    queue: QueueName
    sampling: Sampling
    names: list[PageName] = field(default_factory=list)
    naive: NaiveContext = field(default_factory=NaiveContext)
    segment: CallId | None = None  # while one runs, what follows is not known
    is_broken: bool = False

    @property
    def kv_len(self) -> int:
        return len(self.naive.values)


T = TypeVar("T")


def chosen(things: Sequence[T], pick: int) -> T:
    return things[pick % len(things)]


class RandomPrograms(RuleBasedStateMachine):
    """Ample blocks: no call may fail."""

    num_blocks = 2000
    tolerates: frozenset[str] = frozenset()
    max_contexts = 100  # of a run
    num_runs = 3
    truncates = True
    is_ahead = False  # whether steps are

    def __init__(self) -> None:
        super().__init__()
        config = ControlConfig(max_batch_rows=3, max_batch_tokens=7)
        self.rig = Rig(num_blocks=self.num_blocks, config=config, is_ahead=self.is_ahead)
        self.programs: list[Program] = []
        self.num_opened = 0

    def contexts(self) -> list[RandomContext]:
        """Those that may be told to do something."""
        return [one for program in self.programs for one in program.contexts if one.segment is None]

    @precondition(lambda self: len(self.programs) < self.num_runs)
    @rule()
    def open_run(self) -> None:
        self.num_opened += 1
        self.programs.append(Program(self.rig.open(f"run {self.num_opened}", queues=())))

    @precondition(lambda self: self.programs)
    @rule(pick=PICK, seed=st.integers(0, 3))
    def new_context(self, pick: int, seed: int) -> None:
        program = chosen(self.programs, pick)
        if len(program.contexts) < self.max_contexts:
            self._new_context(program, Sampling(temperature=1.0, seed=seed))

    @precondition(lambda self: self.contexts())
    @rule(pick=PICK, tokens=st.lists(st.integers(0, 63), min_size=1, max_size=12))
    def extend(self, pick: int, tokens: list[int]) -> None:
        self._extend(chosen(self.contexts(), pick), tokens)

    @precondition(lambda self: self.programs)
    @rule(pick=PICK, text=st.sampled_from(WELL_KNOWN), length=st.integers(5, 24))
    def begin_well_known(self, pick: int, text: list[int], length: int) -> None:
        """A context whose beginning others have too: the prefix cache may have it."""
        program = chosen(self.programs, pick)
        if len(program.contexts) < self.max_contexts:
            self._extend(self._new_context(program, Sampling(temperature=1.0, seed=1)), text[:length])

    @precondition(lambda self: self.contexts() and self.truncates)
    @rule(pick=PICK, kept=st.integers(0, 24))
    def truncate(self, pick: int, kept: int) -> None:
        """Forgets the end; what follows is written over it, in pages that others may share through the cache."""
        context = chosen(self.contexts(), pick)
        pages = self.rig.controller._resources.holdings(context.program.run.session.run_id).pages.names
        num_shared = sum(name in pages and pages[name].num_names > 1 for name in context.names)  # by forks
        del context.naive.values[max(kept, num_shared * BLOCK_SIZE) :]

    def _extend(self, context: RandomContext, tokens: list[int]) -> None:
        if context.kv_len + len(tokens) > MAX_TOKENS_OF_A_CONTEXT:
            return
        start, program = context.kv_len, context.program
        positions = tuple(range(start, start + len(tokens)))
        num_new = -(-(start + len(tokens)) // BLOCK_SIZE) - len(context.names)
        grow_from = program.take_name(max(num_new, 0))
        call = program.run.submit(
            ForwardText(
                queue=context.queue,
                pages=tuple(context.names),
                grow_from=PageName(grow_from),
                kv_len=start,
                tokens=tuple(tokens),
                positions=positions,
                sampling=context.sampling,
            )
        )
        context.names += [PageName(grow_from + place) for place in range(num_new)]
        hidden = context.naive.run(tokens, positions)[-1]
        expected = (start + len(tokens), choose(hidden, context.sampling, start + len(tokens)))
        program.checks[call] = lambda completion: self._check_forward(context, completion, expected)

    @precondition(lambda self: self.contexts())
    @rule(pick=PICK, token=st.integers(0, 63), num_right=st.integers(0, 5), num_drafts=st.integers(1, 5))
    def speculate(self, pick: int, token: int, num_right: int, num_drafts: int) -> None:
        """Runs a token and guesses of what follows, of which the first `num_right` are right."""
        context = chosen(self.contexts(), pick)
        start, program = context.kv_len, context.program
        if start + 1 + num_drafts > MAX_TOKENS_OF_A_CONTEXT:
            return
        right = context.naive.generate((token,), (start,), context.sampling, num_drafts + 1)
        num_right = min(num_right, num_drafts)
        drafts = [*right[:num_right], *((one + 1) % 64 for one in right[num_right:num_drafts])]
        del context.naive.values[start + 1 + num_right :]
        num_pages = -(-(start + 1 + num_drafts) // BLOCK_SIZE)
        grow_from = program.take_name(max(num_pages - len(context.names), 0))
        call = program.run.submit(
            ForwardText(
                queue=context.queue,
                pages=tuple(context.names),
                grow_from=PageName(grow_from),
                kv_len=start,
                tokens=(token, *drafts),
                positions=tuple(range(start, start + 1 + num_drafts)),
                sampling=context.sampling,
                num_drafts=num_drafts,
            )
        )
        context.names += [PageName(grow_from + place) for place in range(num_pages - len(context.names))]
        expected = (start + 1 + num_right, right[: num_right + 1])
        program.checks[call] = lambda completion: self._check_speculation(context, completion, expected)

    @precondition(lambda self: self.contexts())
    @rule(pick=PICK, token=st.integers(0, 63), max_tokens=st.integers(1, 9), stop_token=st.integers(0, 63))
    def begin_segment(self, pick: int, token: int, max_tokens: int, stop_token: int) -> None:
        context = chosen(self.contexts(), pick)
        start, program = context.kv_len, context.program
        if start + max_tokens > MAX_TOKENS_OF_A_CONTEXT:
            return
        grow_from = program.take_name(4)
        context.segment = program.run.submit(
            generate(
                (token,), queue=context.queue, pages=context.names, grow_from=grow_from, kv_len=start,
                sampling=context.sampling, max_tokens=max_tokens, stop_tokens=(stop_token,),
            )
        )  # fmt: skip
        expected = context.naive.generate((token,), (start,), context.sampling, max_tokens, (stop_token,))
        program.checks[context.segment] = lambda completion: self._check_segment(
            context, completion, expected, start, grow_from
        )

    @precondition(lambda self: any(one.segment for program in self.programs for one in program.contexts))
    @rule(pick=PICK)
    def interrupt(self, pick: int) -> None:
        running = [one for program in self.programs for one in program.contexts if one.segment is not None]
        context = chosen(running, pick)
        assert context.segment is not None
        if context.program.run.session.open_calls[context.segment].is_started:
            context.program.run.session.interrupt(context.segment)

    @precondition(lambda self: self.contexts())
    @rule(pick=PICK)
    def fork(self, pick: int) -> None:
        parent = chosen(self.contexts(), pick)
        program = parent.program
        if len(program.contexts) >= min(self.max_contexts, 6):
            return
        child = self._new_context(program, parent.sampling)
        num_full, num_tail = divmod(parent.kv_len, BLOCK_SIZE)
        child.names = [PageName(program.take_name()) for _ in range(num_full)]
        child.naive.values = list(parent.naive.values)
        self._issue(
            child, SharePages(queue=child.queue, sources=tuple(parent.names[:num_full]), targets=tuple(child.names))
        )
        if num_tail:
            tail = PageName(program.take_name())
            self._issue(child, AllocatePages(queue=child.queue, pages=(tail,)))
            self._issue(child, CopyPage(queue=child.queue, source=parent.names[num_full], target=tail, size=num_tail))
            child.names.append(tail)

    @precondition(lambda self: self.contexts())
    @rule(pick=PICK)
    def rename(self, pick: int) -> None:
        context = chosen(self.contexts(), pick)
        names = [PageName(context.program.take_name()) for _ in context.names]
        self._issue(context, SharePages(queue=context.queue, sources=tuple(context.names), targets=tuple(names)))
        self._issue(context, FreePages(queue=context.queue, pages=tuple(context.names)))
        context.names = names

    @precondition(lambda self: self.contexts())
    @rule(pick=PICK)
    def free(self, pick: int) -> None:
        context = chosen(self.contexts(), pick)
        self._issue(context, FreePages(queue=context.queue, pages=tuple(context.names)))
        context.program.contexts.remove(context)

    @precondition(lambda self: self.programs)
    @rule(pick=PICK, is_running=st.booleans())
    def close_run(self, pick: int, is_running: bool) -> None:
        program = chosen(self.programs, pick)
        is_running = is_running and self.rig.begin()
        program.run.session.close()
        self.programs.remove(program)
        if is_running:
            self.rig.step()

    @rule(num_steps=st.integers(1, 6))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.rig.clock.advance(1)
            self.rig.step()
            self.rig.executor.batches.clear()

    @invariant()
    def answers_are_those_of_the_naive_loop(self) -> None:
        self.rig.controller.check_integrity()
        for program in self.programs:
            program.run.order()
            for call in [call for call in program.checks if call in program.run.finals]:
                program.checks.pop(call)(program.run.finals[call])
            for context in [one for one in program.contexts if one.is_broken]:
                program.contexts.remove(context)

    def teardown(self) -> None:
        for _ in range(2000):
            self.rig.clock.advance(1)
            if not self.rig.step():
                break
        self.answers_are_those_of_the_naive_loop()
        assert self.tolerates or not any(program.checks for program in self.programs), "calls never completed"
        for program in self.programs:
            program.run.session.close()
        self.rig.assert_all_free()

    def _new_context(self, program: Program, sampling: Sampling) -> RandomContext:
        queue = QueueName(program.take_name())
        program.run.now(CreateQueue(queue=queue))
        program.contexts.append(RandomContext(program, queue, sampling))
        return program.contexts[-1]

    def _issue(self, context: RandomContext, call: SharePages | AllocatePages | CopyPage | FreePages) -> None:
        program = context.program
        program.checks[program.run.submit(call)] = lambda completion: self._is_ok(context, completion)

    def _is_ok(self, context: RandomContext, completion: Completion) -> bool:
        """Whether the call went well; if not, the context is of no more use."""
        if completion.error is None:
            return True
        may_fail = completion.error.type in self.tolerates or (self.tolerates and context.is_broken)
        assert may_fail, completion.error
        context.is_broken, context.segment = True, None
        return False

    def _check_forward(self, context: RandomContext, completion: Completion, expected: tuple[int, int]) -> None:
        if self._is_ok(context, completion):
            result = completion.result
            assert (result.kv_len, result.token) == expected

    def _check_speculation(
        self, context: RandomContext, completion: Completion, expected: tuple[int, list[int]]
    ) -> None:
        if self._is_ok(context, completion):
            result = completion.result
            assert (result.kv_len, list(result.tokens)) == expected

    def _check_segment(
        self, context: RandomContext, completion: Completion, expected: list[int], start: int, grow_from: int
    ) -> None:
        context.segment = None
        if not self._is_ok(context, completion):
            return
        segment = completion.result
        if segment.reason == "interrupted":
            expected = expected[: len(segment.tokens)]
        assert list(segment.tokens) == expected
        assert segment.kv_len == start + len(expected)
        assert segment.num_pages == max(len(context.names), -(-segment.kv_len // BLOCK_SIZE))
        context.names += [PageName(grow_from + place) for place in range(segment.num_pages - len(context.names))]
        del context.naive.values[segment.kv_len :]


class TightRandomPrograms(RandomPrograms):
    """So few blocks that calls wait, and some fail."""

    num_blocks = 12
    tolerates = frozenset(EXPECTED_ERRORS)


class PatientRandomPrograms(RandomPrograms):
    """Blocks for one run at a time, all of whose pages can be dropped: calls wait, runs are suspended, and no call may
    fail. (Without `truncate`, which leaves pages that are partly unknown.)"""

    num_blocks = 48  # two contexts of 40 tokens, and what calls still hold of contexts that are freed
    max_contexts, num_runs = 2, 6
    truncates = False

    def _is_ok(self, context: RandomContext, completion: Completion) -> bool:
        """A run whose open calls hold much of contexts that it freed may ask for more than the pool can ever hold."""
        error = completion.error
        if error is None or "the limit of the whole pool is" not in error.message:
            return super()._is_ok(context, completion)
        context.is_broken, context.segment = True, None
        return False


class FaultyRandomPrograms(TightRandomPrograms):
    """Whole steps fail now and then: their calls do, also those that wait for a copy or a rebuilt page."""

    tolerates = frozenset(EXPECTED_ERRORS | {"InternalError", "BadRequest"})  # the last: a page that lost what it held

    def step(self, num_steps: int) -> None:  # type: ignore[override]
        self.num_steps = getattr(self, "num_steps", 0) + 1
        if self.num_steps % 12 == 0:
            self.rig.executor.fault = RuntimeError("device lost")
        super().step(num_steps)
        self.rig.executor.fault = None


class RandomProgramsAhead(RandomPrograms):
    is_ahead = True


class TightRandomProgramsAhead(TightRandomPrograms):
    is_ahead = True


class PatientRandomProgramsAhead(PatientRandomPrograms):
    is_ahead = True


class FaultyRandomProgramsAhead(FaultyRandomPrograms):
    is_ahead = True


SETTINGS = settings(
    max_examples=40, stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
TestRandomPrograms = RandomPrograms.TestCase
TestRandomPrograms.settings = SETTINGS
TestTightRandomPrograms = TightRandomPrograms.TestCase
TestTightRandomPrograms.settings = SETTINGS
TestPatientRandomPrograms = PatientRandomPrograms.TestCase
TestPatientRandomPrograms.settings = settings(SETTINGS, max_examples=80)
TestRandomProgramsAhead = RandomProgramsAhead.TestCase
TestRandomProgramsAhead.settings = SETTINGS
TestTightRandomProgramsAhead = TightRandomProgramsAhead.TestCase
TestTightRandomProgramsAhead.settings = SETTINGS


def soak(machine: RandomPrograms, seed: int, num_operations: int = 1500) -> None:
    """What hypothesis does, longer and with more of everything at once."""
    rng = random.Random(seed)
    operations: list[tuple[int, Callable[[int], None]]] = [
        (15, lambda pick: machine.begin_well_known(pick, WELL_KNOWN[pick % 2], rng.randint(5, 24))),
        (15, lambda pick: machine.extend(pick, rng.choices(range(64), k=rng.randint(1, 9)))),
        (15, lambda pick: machine.begin_segment(pick, rng.randrange(64), rng.randint(1, 9), rng.randrange(64))),
        (5, lambda pick: machine.speculate(pick, rng.randrange(64), rng.randint(0, 4), rng.randint(1, 4))),
        (5, machine.fork),
        (5 if machine.truncates else 0, lambda pick: machine.truncate(pick, rng.randint(0, 24))),
        (5, machine.rename),
        (8, machine.free),
        (3, lambda pick: machine.close_run(pick, is_running=bool(pick % 2))),
        (24, lambda pick: machine.step(1 + pick % 4)),
    ]
    weights, actions = zip(*operations, strict=True)
    for _ in range(num_operations):
        while len(machine.programs) < machine.num_runs:
            machine.open_run()
        if machine.contexts():
            rng.choices(actions, weights)[0](rng.randrange(1000))
        else:
            rng.choice((actions[0], actions[8]))(rng.randrange(1000))
            machine.step(5)
        machine.answers_are_those_of_the_naive_loop()
    machine.teardown()


KINDS = [RandomPrograms, TightRandomPrograms, PatientRandomPrograms, FaultyRandomPrograms]
KINDS_AHEAD = [
    RandomProgramsAhead, TightRandomProgramsAhead, PatientRandomProgramsAhead, FaultyRandomProgramsAhead
]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", [*KINDS, *KINDS_AHEAD])
def test_a_soak_of_random_programs_leaks_nothing(kind: type[RandomPrograms], seed: int) -> None:
    soak(kind(), seed)
