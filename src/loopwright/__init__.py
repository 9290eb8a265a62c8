"""What a program imports. Re-exports the sdk and nothing else, so that the same name works in the sandbox.

The sdk is imported when a name is asked for: the command line need not wait for it before it can be interrupted.
"""

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopwright.sdk import *  # noqa: F403
    from loopwright.sdk import __all__ as __all__
else:

    def __getattr__(name: str) -> object:
        sdk = importlib.import_module("loopwright.sdk")
        if name != "__all__" and name not in sdk.__all__:
            raise AttributeError(f"module 'loopwright' has no attribute {name!r}")
        value = globals()[name] = getattr(sdk, name)
        return value
