"""Chooses what the next step runs, of the calls that wait for nobody. Never touches tensors, sockets or clocks.

Called by the controller whenever the engine is idle. Rows of one token come first: they keep segments flowing. Prompts
share what the token budget leaves, by rank, and are cut to fit it. A call that needs a block and finds none stays.
"""

import math
from bisect import insort
from collections.abc import Iterable

from loopwright.control.config import ControlConfig
from loopwright.control.decoding import DecodeGroup
from loopwright.control.feeds import Feed
from loopwright.control.going_rows import GoingRows
from loopwright.control.joiner import Joiner
from loopwright.control.ordering import OpenCall
from loopwright.control.pace import Pace
from loopwright.control.reads import check_reads
from loopwright.control.resource_manager import ResourceManager
from loopwright.control.segments import SegmentFeed
from loopwright.control.step import Step
from loopwright.core.batch import ForwardRow
from loopwright.core.errors import LoopwrightError
from loopwright.core.ids import RunId

USUAL_PROMPT_STEP_S = 0.02
"""Where steps are usually ahead: a GPU's, of which one with a whole prompt may take fifty times what others take."""

PRIORITY_STEPS = 8
"""When more segments wait than a step has rows, one of high priority goes before those that wait 8 steps longer."""


class Scheduler:
    """The calls that wait for nobody but the engine. A call stays until it is over; its owner says so on the call."""

    def __init__(self, config: ControlConfig, resources: ResourceManager, pace: Pace | None = None) -> None:
        """`pace` is what steps take."""
        shape = resources.shape
        self._config = config
        self._resources = resources
        self._pace = pace or Pace()
        self._max_tokens = config.max_batch_tokens or max(shape.max_step_tokens, 2 * config.max_batch_rows)
        usual_s = USUAL_PROMPT_STEP_S if shape.steps_ahead == "usual" else 0.0
        self._prompt_step_s = usual_s if config.prompt_step_s == "auto" else config.prompt_step_s
        self._joiner = Joiner(resources, config.max_batch_rows, self._max_tokens)
        self._num_formed = 0  # steps, so far
        self._now_s = 0.0  # when the last one was
        self._light: list[OpenCall] = []  # copies, shifts, embeds and heads, by arrival
        self._decoding = DecodeGroup(resources.shape.block_size)  # feeds that have a row in every step
        self._going = GoingRows()  # that go on from calls which were over, and have all they need
        self._short: list[OpenCall] = []  # others with one input left, by arrival; the longest unserved first
        self._long: list[OpenCall] = []  # feeds with more, and what has dropped pages, by rank
        self.suspended: dict[RunId, list[OpenCall]] = {}  # their calls that would be in one of the three
        self.is_blocked = False  # whether a call found too few blocks when the last step was formed

    def add(self, call: OpenCall, now_s: float) -> None:
        """Takes a call that waits for nobody any more. When it came does not matter: what waits runs."""
        if isinstance(call.work, Feed) and call.work.num_left > 1:
            call.rank -= self._resources.advance(call)
        self.put(call)

    def add_again(self, call: OpenCall) -> None:
        """As `add`, for a call that was over, and goes on with one input that needs no block: it may be here yet,
        and among the long ones if it ran there, where a call goes whose pages were dropped."""
        feed = call.work
        assert isinstance(feed, Feed)
        if call.run_id not in self.suspended and self._going.add(call, feed):
            return
        call.is_apart = False
        if call in self._long:
            self._long.remove(call)
        if call.run_id in self.suspended or call not in self._short:
            self.put(call)

    def put(self, call: OpenCall) -> None:
        """As `add`, for a call that was here before."""
        if call.run_id in self.suspended:
            self.suspended[call.run_id].append(call)
        elif self._resources.has_dropped(call) or (isinstance(call.work, Feed) and call.work.num_left > 1):
            insort(self._long, call, key=lambda one: one.rank)
        elif isinstance(call.work, Feed):
            self._put_short(call)
        else:
            self._light.append(call)

    def rest(self, call: OpenCall, token_s: float) -> None:
        """As `put`, for one that was among the decode rows until its last token, which came then."""
        assert isinstance(call.work, SegmentFeed)
        call.token_s, call.num_seen = token_s, len(call.work.tokens)
        self.put(call)

    def restored(self, call: OpenCall) -> None:
        """Takes note that the call has its dropped pages back."""
        self._long.remove(call)
        self.put(call)

    def suspend(self, run_id: RunId) -> None:
        """Leaves the run's calls out of all steps from now on."""
        assert not self._decoding, "a run is suspended when nothing can run"
        self._put_going()
        calls = (*self._light, *self._short, *self._long)
        self.suspended[run_id] = [call for call in calls if call.run_id == run_id and not call.is_over]
        self._light, self._short, self._long = (
            [call for call in calls if call.run_id != run_id] for calls in (self._light, self._short, self._long)
        )

    def resume(self, run_id: RunId) -> None:
        """Ends what `suspend` began."""
        for call in self.suspended.pop(run_id, ()):
            if not call.is_over:
                self.put(call)

    @property
    def is_decoding(self) -> bool:
        """Whether somebody waits for the next token of an answer that has begun."""
        return bool(self._decoding or self._short or self._going.calls or self._going.num_apart)

    @property
    def has_segments(self) -> bool:
        """Likewise, if that answer is a segment's: who decides about each token himself is not counted."""
        return bool(self._decoding) or any(isinstance(call.work, SegmentFeed) for call in self._short)

    def reorder(self) -> None:
        """For whoever changed the rank of calls that may be here."""
        self._long.sort(key=lambda call: call.rank)

    def form(self, now_s: float) -> Step:
        """What the next step runs; no call if none can."""
        return self._fill(Step(self._resources.shape.block_size, self._decoding), now_s)

    def form_ahead(self, now_s: float, running: Step) -> Step | None:
        """What runs behind the step that runs: all that goes on with what that one samples, and what waits. None if
        something of it could go on only when its result is here: then that would miss a step."""
        self._decoding.end_known()
        self._rest_held()
        self._put_going()
        going = running.going_on()
        if going is None or self.suspended or running.private:
            return None
        num_short = sum(not (call.is_over or call.is_resting) for call in self._short)
        if not (self._decoding or going or num_short or self._light or self._long):
            return None
        if len(self._decoding) + len(going) + num_short > self._config.max_batch_rows:
            return None  # they take turns
        if not self._grow_ahead(going):
            return None
        step = Step(self._resources.shape.block_size, self._decoding, running, continued=running.cut())
        for call, (source, feed, is_steady) in going.items():
            if is_steady:
                self._decoding.join(call, num_unknown=1)
                step.joined_decoding.append(call)
            else:
                call.served_at = self._num_formed + 1
                step.rows.append(call)
                step.batch_rows.append(feed.row_ahead(source))
        if step.joined_decoding:
            self._short = [call for call in self._short if call.decoding is None]
        return self._fill(step, now_s)

    def waiting(self) -> list[OpenCall]:
        """The calls that are not over. After a form that took none, all of them wait for blocks."""
        calls = (*self._light, *self._going.calls, *self._short, *self._long)
        return [call for call in calls if not call.is_over and not call.is_paused]

    def due_s(self) -> float:
        """When a step could be formed though nothing else happens: never, for what can run, runs."""
        return math.inf

    def _fill(self, step: Step, now_s: float) -> Step:
        self.is_blocked = False
        self._going.num_apart = 0
        self._num_formed += 1
        self._now_s = now_s
        self._take_light(step)
        self._take_going(step)
        self._take_short(step)
        self._take_long(step)
        self._take_joining(step)
        return step

    def _grow_ahead(self, going: Iterable[OpenCall]) -> bool:
        """Gives decode rows, and the others that go on, the pages that they need, if that takes no more than to take
        them. If it does, the next step, which is not ahead, does it."""
        full = self._decoding.take_full()
        num_grown = self._resources.grow_all(full)
        self._decoding.have_grown(full[:num_grown])
        for call in full[num_grown:]:
            self._decoding.has_grown(call)  # not yet: it is asked about again
        return num_grown == len(full) and all(self._has_grown(call) for call in going)

    def _has_grown(self, call: OpenCall) -> bool:
        """Whether a segment has a place behind the token that is being sampled for it, or has got one."""
        feed = call.work
        assert isinstance(feed, SegmentFeed)
        has_room = feed.kv_len_next < len(feed.block_ids) * self._resources.shape.block_size
        return has_room or self._resources.grow(call, feed)

    def _put_short(self, call: OpenCall) -> None:
        call.served_at = self._num_formed
        self._short.append(call)

    def _take_light(self, step: Step) -> None:
        waiting = [call for call in self._light if not call.is_over]
        if len(waiting) > self._config.max_batch_rows:
            waiting.sort(key=lambda call: call.rank)  # otherwise all go
        self._light = []
        for call in waiting:
            taken = step.light_list(call)
            assert taken is not None
            if len(taken) < self._config.max_batch_rows and self._admit(call, step):
                taken.append(call)
            elif not _is_refused(call, step):
                self._light.append(call)

    def _take_going(self, step: Step) -> None:
        """Those with a row that is made already, if all of one token may have one: else they take turns."""
        num_going = len(self._going.calls)
        if not num_going:
            return
        if num_going + len(self._decoding) + len(self._short) > self._config.max_batch_rows or step.batch_rows:
            self._put_going()
        else:
            self._going.take(step, self._num_formed, self._now_s)

    def _put_going(self) -> None:
        """Has those wait that any call of one token waits with."""
        for call in self._going.give_up():
            self._put_short(call)

    def _take_short(self, step: Step) -> None:
        max_rows = self._config.max_batch_rows
        self._rest_held()
        waiting = [call for call in self._short if not call.is_over]
        # And soon the first, when their programs let them go on; also what runs, and is over then.
        unserved = [call for call in waiting if call.is_resting]
        served: list[OpenCall] = []
        if len(self._decoding) + len(waiting) - len(unserved) > max_rows:
            waiting += self._dissolve_decoding()
            waiting.sort(key=_turn)  # otherwise all go
        else:
            unserved += self._grow_decoding(step)
        for call in waiting:
            feed = call.work
            assert isinstance(feed, Feed)
            if call.is_resting:
                continue
            if feed.num_left != 1:  # a grammar forced tokens after the sampled one
                insort(self._long, call, key=lambda one: one.rank)
            elif step.num_rows == max_rows:
                unserved.append(call)
            elif self._has_place(call, feed) or self._admit(call, step):
                if call.restoring is not None:  # it reached a page that was dropped, with what stood there before
                    insort(self._long, call, key=lambda one: one.rank)
                elif feed.is_steady:
                    self._decoding.join(call)
                    step.joined_decoding.append(call)
                elif self._serve(call, feed, step):
                    served.append(call)
            else:
                served.append(call)
        self._short = unserved + served
        step.num_short = len(step.rows)

    def _serve(self, call: OpenCall, feed: Feed, step: Step) -> bool:
        """Has the next row of a call of one token in the step. Whether the call stays among those."""
        call.served_at = self._num_formed
        if not call.is_started:
            call.is_started, call.started_s = True, self._now_s
        step.rows.append(call)
        step.batch_rows.append(feed.next_row(1))
        return not self._going.served(call, feed)

    def _dissolve_decoding(self) -> list[OpenCall]:
        """Has all decode rows leave: there are more rows of one token than a step may have, so they take turns."""
        calls = self._decoding.dissolve()
        for call in calls:
            call.served_at = self._num_formed - 1
            self._note_last_token(call)
        return calls

    def _rest_held(self) -> None:
        """Has decode rows wait whose programs do not let them go on."""
        for call in self._decoding.rest_held():
            self._note_last_token(call)
            self._put_short(call)

    def _grow_decoding(self, step: Step) -> list[OpenCall]:
        """Gives decode rows the pages that they need. Those that do not get theirs leave, and are returned."""
        without: list[OpenCall] = []
        for call in self._decoding.take_full():
            feed = call.work
            assert isinstance(feed, Feed)
            if self._has_place(call, feed) or (self._admit(call, step) and call.restoring is None):
                self._decoding.has_grown(call)
                continue
            self._decoding.leave(call)
            call.served_at = self._num_formed - 1
            self._note_last_token(call)
            if call.restoring is not None:
                insort(self._long, call, key=lambda one: one.rank)
            else:
                without.append(call)
        return without

    def _note_last_token(self, call: OpenCall) -> None:
        """For the observer: one that was among the decode rows until now had its last token with the last step."""
        assert isinstance(call.work, SegmentFeed)
        call.token_s, call.num_seen = self._resources.moment.step_over_s, len(call.work.tokens)

    def _has_place(self, call: OpenCall, feed: Feed) -> bool:
        """Whether a call that goes on has a place for one token, or has got one without ado."""
        has_room = feed.kv_len < len(feed.block_ids) * self._resources.shape.block_size
        return has_room or (call.is_started and self._resources.grow(call, feed))

    def _take_long(self, step: Step) -> None:
        budget, num_before = self._prompt_budget(step.num_rows), len(step.batch_rows)
        is_blocked = False
        still_long: list[OpenCall] = []
        for place, call in enumerate(self._long):
            if budget <= 0:
                still_long += self._long[place:]
                break
            if call.is_over:
                continue
            num_taken, stays = 0, True
            if call in step.continued:
                num_taken, stays = self._take_ahead(call, step, budget)
            # Blocks go by rank: one that waits for them holds back all below it that need some, or it might starve.
            elif _is_fitting(call, budget, is_first=len(step.batch_rows) == num_before) and (
                call.is_started or not is_blocked
            ):
                if self._admit(call, step):
                    num_taken, stays = self._take_admitted(call, step, budget)
                elif not _is_refused(call, step) and not _is_copying(call, step):
                    is_blocked = True
            budget -= num_taken
            if stays:
                still_long.append(call)
        self._long = still_long

    def _take_admitted(self, call: OpenCall, step: Step, budget: int) -> tuple[int, bool]:
        """Has a piece of the call in the step: so many tokens, and whether it stays among the long ones."""
        feed = call.feed
        if feed is None:  # it is no forward, and has its dropped pages back
            self._take_restored(call, step)
            return 0, False
        if feed is call.work and feed.is_steady:  # the cache had its dropped pages
            self._decoding.join(call)
            step.joined_decoding.append(call)
            return 1, False
        row = feed.next_row(budget if feed.is_chunkable else feed.num_left)
        step.rows.append(call)
        step.batch_rows.append(row)
        is_short = call.restoring is None and _will_be_short(feed, row)
        if is_short:
            self._put_short(call)
        return row.num_tokens, not is_short

    def _take_ahead(self, call: OpenCall, step: Step, budget: int) -> tuple[int, bool]:
        """As `_take_admitted`, of a call of which a piece runs: it has all its blocks."""
        feed = call.work
        assert isinstance(feed, Feed)
        if (row := feed.chunk_ahead(budget)) is None:
            return 0, True
        step.rows.append(call)
        step.batch_rows.append(row)
        is_short = feed.is_through and isinstance(feed, SegmentFeed)
        if is_short:
            self._put_short(call)
        return row.num_tokens, not is_short

    def _prompt_budget(self, num_single: int) -> int:
        """Tokens for longer rows beside so many of one token."""
        budget = self._max_tokens - num_single
        if num_single and self._prompt_step_s:
            return min(budget, self._pace.room(num_single, self._prompt_step_s))
        return budget

    def _take_restored(self, call: OpenCall, step: Step) -> None:
        taken = step.light_list(call)
        if taken is None:
            step.settled.append(call)
        elif len(taken) < self._config.max_batch_rows:
            taken.append(call)
        else:
            self.put(call)

    def _take_joining(self, step: Step) -> None:
        """Takes calls that wait for nobody but calls of the step, and may run in it with them."""
        num_joined = self._joiner.join(step, len(self._decoding), self._now_s)
        first = len(step.rows) - num_joined
        for call, row in zip(step.rows[first:], step.batch_rows[first:], strict=True):
            feed = call.work
            assert isinstance(feed, Feed)
            if _will_be_short(feed, row):
                self._put_short(call)
            elif row.num_tokens < feed.num_left:
                insort(self._long, call, key=lambda one: one.rank)

    def _admit(self, call: OpenCall, step: Step) -> bool:
        """Whether the call has all it needs to run now. One that cannot ever is put among the refused."""
        if step.is_copied_from(call):
            return False
        try:
            if not call.is_started:
                check_reads(call, self._resources.shape.block_size)
            if not self._resources.secure(call):
                self.is_blocked = True
                return False
        except LoopwrightError as error:
            step.refused.append((call, error))
            return False
        if not call.is_started:
            call.is_started, call.started_s = True, self._now_s
        copies = self._resources.backing.take_copies()
        step.private += [(call, copy) for copy in copies]
        return not copies


def _turn(call: OpenCall) -> int:
    """The longest unserved first; a queue of priority 1 as if it had waited for so many steps more."""
    return call.served_at - call.queue.priority * PRIORITY_STEPS


def _is_refused(call: OpenCall, step: Step) -> bool:
    return bool(step.refused) and step.refused[-1][0] is call


def _is_copying(call: OpenCall, step: Step) -> bool:
    return bool(step.private) and step.private[-1][0] is call


def _is_fitting(call: OpenCall, budget: int, *, is_first: bool) -> bool:
    """Whether a call that could run may have a piece within the budget, or is the first of the step."""
    feed = call.feed
    return not call.is_resting and (feed is None or feed.is_chunkable or feed.num_left <= budget or is_first)


def _will_be_short(feed: Feed, row: ForwardRow) -> bool:
    """Whether one input is left after the row: the last of a prompt, or a segment's first sampled token."""
    num_left = feed.num_left - row.num_tokens
    return num_left == 1 or (num_left == 0 and isinstance(feed, SegmentFeed))
