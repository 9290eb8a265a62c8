"""What control has counted and what is so now, as series for whoever asks. Never counts anything itself. Called by the
controller: everything here is read from books that are kept anyway.
"""

from collections.abc import Iterable

from loopwright.control.resource_manager import ResourceManager
from loopwright.control.session import InlineSession
from loopwright.control.suspension import Suspension
from loopwright.core import metrics
from loopwright.core.instrument import Meter
from loopwright.core.metrics import Series


def control_series(
    meter: Meter, resources: ResourceManager, suspension: Suspension, sessions: Iterable[InlineSession]
) -> tuple[Series, ...]:
    """Of one control layer."""
    blocks = resources.blocks
    calls = [call for session in sessions for call in session.open_calls.values()]
    num_running = sum(call.is_running for call in calls)
    return meter.series(
        [
            (metrics.CACHE_QUERIES, resources.backing.num_queried, ()),
            (metrics.CACHE_HITS, resources.backing.num_found, ()),
            (metrics.EVICTIONS, blocks.num_evicted, ("cache",)),
            (metrics.EVICTIONS, suspension.num_dropped_idle, ("idle",)),
            (metrics.EVICTIONS, suspension.num_dropped_suspended, ("suspended",)),
            (metrics.SUSPENSIONS, suspension.num_suspended, ()),
            (metrics.RUNS_SUSPENDED, suspension.num_waiting, ()),
            (metrics.KV_USAGE, 1 - blocks.num_free / blocks.num_total, ()),
            (metrics.KV_BLOCKS, blocks.num_total, ()),
            (metrics.CALLS_RUNNING, num_running, ()),
            (metrics.CALLS_WAITING, len(calls) - num_running, ()),
        ]
    )
