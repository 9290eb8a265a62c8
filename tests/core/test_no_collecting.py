"""No collection begins while something large is made, and collections go on as they did before; in processes that serve
they are few."""

import gc
import subprocess
import sys
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


def test_the_command_line_and_workers_collect_seldom() -> None:
    """A hundred texts that begin at once must not have their step wait while the whole process is looked through."""
    for module in ("loopwright.__main__", "loopwright.compose.worker", "loopwright.engine.rank_member"):
        look = f"import gc, sys; import {module} as it; sys.argv[1:] = []\n"
        look += "try: it.main()\nexcept BaseException: print('threshold', gc.get_threshold()[0])"
        said = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, input="").stdout
        assert int(said.rpartition("threshold")[2]) >= 10_000, module
