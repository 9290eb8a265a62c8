"""What a program imports. Re-exports the sdk and nothing else, so that the same name works in the sandbox."""

from loopwright.sdk import *  # noqa: F403
from loopwright.sdk import __all__ as __all__
