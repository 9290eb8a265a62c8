"""No collection begins while something large is made, and collections go on as they did before."""

import gc
import threading

import pytest

from loopwright.core.no_collecting import no_collecting


@pytest.mark.parametrize("was_enabled", [True, False])
def test_collections_are_as_they_were_when_the_last_is_out(was_enabled: bool) -> None:
    (gc.enable if was_enabled else gc.disable)()
    try:
        with no_collecting():
            inside = threading.Thread(target=enter_and_leave)
            inside.start()
            inside.join()
            assert not gc.isenabled()
        assert gc.isenabled() is was_enabled
        with pytest.raises(ValueError, match="1"), no_collecting():
            raise ValueError(1)
        assert gc.isenabled() is was_enabled
    finally:
        gc.enable()


def enter_and_leave() -> None:
    with no_collecting():
        assert not gc.isenabled()
