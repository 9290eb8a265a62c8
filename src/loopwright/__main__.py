"""`python -m loopwright` and the `loopwright` command: ends the process with what cli says. Never decides anything."""

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn


def _leave(number: int, frame: "FrameType | None") -> "NoReturn":
    """An interrupt while the imports below run: nothing is open yet."""
    os.write(2, b"loopwright: interrupted\n")
    os._exit(130)


signal.signal(signal.SIGINT, _leave)

from loopwright.core.no_collecting import collect_seldom  # noqa: E402

collect_seldom()  # looking for garbage would be a tenth of the time that the imports below take

from loopwright import cli  # noqa: E402

__all__ = ["main"]


def main() -> "NoReturn":
    """Runs the command line of this process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    status = cli.main()
    sys.stderr.flush()
    # Everything is closed by now but what an interrupt has left: threads that still load a model, perhaps for minutes,
    # and that would crash inside torch when the interpreter ends around them.
    os._exit(status)


if __name__ == "__main__":
    main()
