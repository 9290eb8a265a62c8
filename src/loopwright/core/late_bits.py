"""What a row may choose, said when the row runs already: a grammar has to see the token that the step before samples.

Made by control with the row, given by control when that token is here, awaited by the executor behind the forward pass.
Never knows a grammar.
"""

from threading import Event

from loopwright.core.errors import InternalError

PATIENCE_S = 30.0
"""For how long an executor waits. Control gives them with the result of the step before, whatever came of it."""


class LateBits:
    """Given once; any thread may wait for them."""

    def __init__(self) -> None:
        self._given = Event()
        self._bits: bytes | None = None

    @property
    def is_given(self) -> bool:
        return self._given.is_set()

    def give(self, bits: bytes | None) -> None:
        """As `ForwardRow.allowed_bits`. None: nobody looks at what the row chooses."""
        self._bits = bits
        self._given.set()

    def wait(self) -> bytes | None:
        """Raises InternalError when nobody gives them."""
        if not self._given.wait(PATIENCE_S):
            raise InternalError(f"after {PATIENCE_S:g} s nobody has said what a row may choose")
        return self._bits
