"""`python -m loopwright` and the `loopwright` command: ends the process with what cli says. Never decides anything."""

import gc
import os
import sys
from typing import NoReturn

gc.set_threshold(
    50_000, 20, 100
)  # imports make 200,000 objects that stay: looking for garbage is a tenth of their time

from loopwright import cli  # noqa: E402

__all__ = ["main"]


def main() -> NoReturn:
    """Runs the command line of this process."""
    status = cli.main()
    sys.stderr.flush()
    # Everything is closed by now but what an interrupt has left: threads that still load a model, perhaps for minutes,
    # and that would crash inside torch when the interpreter ends around them.
    os._exit(status)


if __name__ == "__main__":
    main()
