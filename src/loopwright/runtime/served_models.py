"""The models of a server, each with its text side and its own control layer. Never runs one. Made by compose.

Asked by the launcher, the services and a run's doors; the first is the default of whoever names none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from loopwright.core.control import Control
from loopwright.core.errors import BadRequest, NotFound
from loopwright.core.model_info import ModelInfo
from loopwright.runtime.facts import ModelText


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model."""

    text: ModelText
    control: Control


class ServedModels:
    """By name, in the order in which they were given."""

    def __init__(self, served: Sequence[ServedModel]) -> None:
        self._by_name = {one.text.info.name: one for one in served}
        if len(self._by_name) < len(served):
            names = ", ".join(one.text.info.name for one in served)
            raise BadRequest(f"model: one name stands for two models: {names}", field="model", hint="serve each once")

    def all(self) -> tuple[ServedModel, ...]:
        return tuple(self._by_name.values())

    def infos(self) -> tuple[ModelInfo, ...]:
        return tuple(one.text.info for one in self._by_name.values())

    def find(self, name: str) -> ServedModel:
        """The first for "". Raises NotFound, naming those that are served."""
        found = self._by_name.get(name or next(iter(self._by_name)))
        if found is None:
            raise NotFound(f"model: {name!r} is not served; served: {', '.join(self._by_name)}", field="model")
        return found
