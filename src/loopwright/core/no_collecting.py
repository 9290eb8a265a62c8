"""Keeps the garbage collector from looking, seldom or never, where there is none. Never changes when objects are freed.

Nothing that is being decoded is garbage, and to look for some again and again, in all that the process holds, takes ten
times as long as to decode it. Used by whoever decodes what may be large, on any thread, and by processes that serve.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_num_inside = 0
_was_enabled = False


def collect_seldom() -> None:
    """For a process that serves: by the interpreter's own thresholds it looks through what it holds, for a tenth of a
    second or two, whenever a step has begun some hundred texts. Imports and a model make 200,000 objects that stay."""
    gc.set_threshold(50_000, 20, 100)


@contextmanager
def no_collecting() -> Iterator[None]:
    """No collection begins inside. Who came in last turns it on again, if it was on."""
    global _num_inside, _was_enabled
    with _lock:
        if _num_inside == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _num_inside += 1
    try:
        yield
    finally:
        with _lock:
            _num_inside -= 1
            if _num_inside == 0 and _was_enabled:
                gc.enable()
