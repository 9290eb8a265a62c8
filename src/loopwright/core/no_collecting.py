"""Keeps the garbage collector from looking while many objects are made at once. Never changes when objects are freed.

Nothing that is being decoded is garbage, and to look for some again and again, in all that the process holds, takes ten
times as long as to decode it. Used by whoever decodes what may be large, on any thread.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_num_inside = 0
_was_enabled = False


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
