"""One run's doors to the models: a session with each that it uses, opened on first use. Never answers a call.

Owned by the run's host. A queue belongs to the model that it was created for, and its calls go there; names of pages
and embeds belong to the model too.
"""

from typing import TYPE_CHECKING

from loopwright.core.calls import CreateQueue, DebugQuery, ExportedPages, QueueCall
from loopwright.core.control import ControlLimits, Session
from loopwright.core.errors import BadRequest, LoopwrightError
from loopwright.core.ids import QueueName, RunId, TenantId
from loopwright.runtime.facts import ModelText
from loopwright.runtime.permissions import Permissions
from loopwright.runtime.served_models import ServedModels

if TYPE_CHECKING:
    from collections.abc import Callable


class ModelDoors:
    """`default` is the run's own model, which needs no permission: who started the run has chosen it."""

    def __init__(
        self,
        models: ServedModels,
        default: str,
        run_id: RunId,
        tenant: TenantId,
        limits: ControlLimits,
        permissions: Permissions,
        program: str,
    ) -> None:
        self.when_opened: Callable[[Session], None] | None = None  # told of each session but the first
        self.default = models.find(default).control.open(run_id, limits, tenant, program)
        self._models = models
        self._default_name = default
        self._run_id, self._tenant, self._limits, self._permissions = run_id, tenant, limits, permissions
        self._program = program
        self._sessions: dict[str, Session] = {default: self.default}
        self._models_of_queues: dict[QueueName, str] = {}
        self._refused: dict[QueueName, LoopwrightError] = {}  # why a queue could not be; nobody may have waited for it

    def wrap_default(self, wrap: "Callable[[Session], Session]") -> None:
        """Puts something that looks on before the run's own session."""
        self.default = self._sessions[self._default_name] = wrap(self.default)

    def text(self, name: str) -> ModelText:
        """The text side of a model; "" is the run's own. Raises NotFound."""
        return self._models.find(name or self._default_name).text

    def text_of_queue(self, queue: QueueName) -> ModelText:
        return self._models.find(self._models_of_queues.get(queue, self._default_name)).text

    def session_for(self, call: QueueCall) -> Session:
        """Where a call goes. Raises NotFound, PermissionDenied for a model that the run does not get, and again for
        every call on a queue of it."""
        if isinstance(call, CreateQueue):
            return self._create(call)
        queue: QueueName | None = getattr(call, "queue", None)
        if queue is None:
            name = call.model if isinstance(call, DebugQuery | ExportedPages) else ""
            return self._open(name or self._default_name)
        if queue in self._refused:
            raise self._refused[queue]
        return self._sessions[self._models_of_queues.get(queue, self._default_name)]

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()

    def _create(self, call: CreateQueue) -> Session:
        try:
            session = self._open(call.model or self._default_name)
        except LoopwrightError as error:
            if len(self._refused) < self._limits.max_queues:
                self._refused[call.queue] = error
            raise
        name = call.model or self._default_name
        found = self._models_of_queues.get(call.queue, name)
        if found != name:
            raise BadRequest(f"queue: {call.queue} exists already, on {found}", field="queue", hint="take another name")
        if len(self._models_of_queues) < self._limits.max_queues * len(self._sessions):  # beyond, control refuses it
            self._models_of_queues[call.queue] = name
        self._refused.pop(call.queue, None)
        return session

    def _open(self, name: str) -> Session:
        session = self._sessions.get(name)
        if session is None:
            control = self._models.find(name).control
            self._permissions.check_model(name)
            session = self._sessions[name] = control.open(self._run_id, self._limits, self._tenant, self._program)
            if self.when_opened is not None:
                self.when_opened(session)
        return session
