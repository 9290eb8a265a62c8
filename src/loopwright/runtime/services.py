"""Which part of the runtime answers which call. Never answers one itself, and never starts a run.

Made by the launcher, one for all runs; the host asks the table that `open` makes for its run.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from loopwright.core.call_base import HostCall
from loopwright.core.code_calls import RunCode
from loopwright.core.exchange import Exchange
from loopwright.core.host_calls import (
    Adapters,
    Describe,
    Detokenize,
    EmbedsNeeded,
    Models,
    RenderChat,
    Tokenize,
    Vocabulary,
)
from loopwright.core.outside_calls import CallTool, HttpClose, HttpOpen, HttpRead, HttpRequest, ListTools
from loopwright.runtime import facts
from loopwright.runtime.budget import Budget
from loopwright.runtime.egress import Egress
from loopwright.runtime.event_log import EventLog
from loopwright.runtime.mailbox import Mailbox
from loopwright.runtime.nested_code import NestedCode
from loopwright.runtime.observation import Observation
from loopwright.runtime.permissions import Permissions
from loopwright.runtime.sandbox import Sandbox
from loopwright.runtime.served_models import ServedModels
from loopwright.runtime.shared_calls import SharedCalls
from loopwright.runtime.text_calls import TextCalls
from loopwright.runtime.toolbox import NO_TOOLS, Toolbox, ToolUse

Answer: TypeAlias = Callable[[Any], object]
"""Takes a call and returns its payload; or a coroutine, which is awaited for it; or an async generator, whose values
are the answer's parts and which ends with Done. Raises LoopwrightError. Cancelled when the program stops waiting."""

TextCall: TypeAlias = Vocabulary | Tokenize | Detokenize | RenderChat
Answers: TypeAlias = Mapping[type[HostCall], Answer]


class Services:
    """What the runs of one process share, beside control."""

    def __init__(
        self, models: ServedModels, exchange: Exchange, code_sandbox: Sandbox | None, tools: Toolbox = NO_TOOLS
    ) -> None:
        self._models = models
        self._texts = {one.text.info.name: TextCalls(one.text) for one in models.all()}
        self._egress = Egress()
        self._code_sandbox = code_sandbox  # for code that a program was given by a model
        self.shared = SharedCalls(exchange)
        self._tools = tools

    @asynccontextmanager
    async def open(
        self,
        run: facts.RunFacts,
        permissions: Permissions,
        budget: Budget,
        mailbox: Mailbox,
        events: EventLog,
        observation: Observation,
    ) -> AsyncIterator[Answers]:
        """The table for one run, for as long as it runs."""

        def name_of(model: str) -> str:
            return self._models.find(model or run.model).text.info.name

        def text(call: TextCall) -> TextCalls:
            return self._texts[name_of(call.model)]

        def fact(call: facts.FactCall) -> object:
            model = self._models.find(name_of("" if isinstance(call, Models) else call.model)).text
            return facts.answer(call, run, model, self._models.infos())

        code = NestedCode(self._code_sandbox, budget)

        def tell(use: ToolUse) -> None:
            observation.used_tool(use.name, use.duration_s, use.outcome)
            events.tool(use.name, use.arguments, use.duration_s, use.outcome)

        async with (
            self.shared.open(run.run_id, run.tenant, permissions, budget.limits, mailbox) as shared,
            self._egress.open(permissions) as way_out,
        ):
            yield {
                **shared,
                Describe: fact,
                Models: fact,
                Adapters: fact,
                EmbedsNeeded: fact,
                Vocabulary: lambda call: text(call).vocabulary(call),
                Tokenize: lambda call: text(call).tokenize(call),
                Detokenize: lambda call: text(call).detokenize(call),
                RenderChat: lambda call: text(call).render_chat(call),
                HttpRequest: way_out.request,
                HttpOpen: way_out.open,
                HttpRead: way_out.read,
                HttpClose: way_out.close_stream,
                ListTools: lambda _: self._tools.list(permissions),
                CallTool: lambda call: self._tools.call(call, permissions, tell, observation.trace_headers),
                RunCode: code.run,
            }
        code.check_integrity()

    async def close(self) -> None:
        await self._egress.close()
        self.shared.close()
