"""`python -m loopwright` and the `loopwright` command. Owns nothing."""

import sys

from loopwright.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
