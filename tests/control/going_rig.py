"""A context that a program makes longer token by token, over a rig, and what a run of it keeps."""

from typing import Any

from msgspec.structs import replace

from loopwright.core.calls import (
    DistributionRequest,
    ForwardText,
    Sampling,
)
from loopwright.core.ids import CallId, PageName, QueueName

from .rig import QUEUE, Rig, RigRun

SIZE = 4  # of a page
GREEDY = Sampling()
LIST = (DistributionRequest(k=5),)


class Context:
    """A program's own view of one context: the pages it has names for, and what they hold."""

    def __init__(self, run: Any, queue: int, first_name: int) -> None:
        self.run, self.queue, self.first_name = run, QueueName(queue), first_name
        self.names: tuple[PageName, ...] = ()
        self.tokens: list[int] = []
        self.sampling: Sampling | None = GREEDY

    def forward(self, tokens: list[int], **changes: Any) -> ForwardText:
        kv_len = len(self.tokens)
        return replace(
            ForwardText(queue=self.queue, pages=self.names, grow_from=PageName(self.first_name + len(self.names)),
                        kv_len=kv_len, tokens=tuple(tokens), positions=tuple(range(kv_len, kv_len + len(tokens))),
                        distributions=LIST, sampling=self.sampling),
            **changes,
        )  # fmt: skip

    def has_run(self, tokens: list[int]) -> None:
        self.tokens += tokens
        num_pages = -(-len(self.tokens) // SIZE)
        self.names += tuple(PageName(self.first_name + number) for number in range(len(self.names), num_pages))


def begun(num_blocks: int = 64, *, is_on: bool = True, **options: Any) -> tuple[Rig, RigRun, Context]:
    rig = Rig(num_blocks=num_blocks, **options)
    rig.controller._successors._is_on = is_on
    run = rig.open("a", queues=(QUEUE, 2))
    context = Context(run, QUEUE, 100)
    run.submit(context.forward([2, 3, 4, 5, 6]))
    rig.drain()
    context.has_run([2, 3, 4, 5, 6])
    return rig, run, context


def one_by_one(rig: Rig, context: Context, tokens: list[int]) -> list[CallId]:
    calls = []
    for token in tokens:
        calls.append(context.run.submit(context.forward([token])))
        rig.drain()
        context.has_run([token])
    return calls


def kept(run: RigRun) -> bool:
    return run.session.kept is not None and run.session.kept.call.is_over
