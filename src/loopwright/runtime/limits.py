"""What one run may use. Never enforces it: sandboxes, the host and control do. Built from a program's metadata.

The server's caps bound what a program asks for.
"""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

Amount: TypeAlias = Annotated[int, Meta(ge=0)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0)]  # no NaN either, which no cap would hold


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run's limits. Sizes say their unit; times are in seconds."""

    memory_mb: Amount = 64  # MiB of linear memory beyond what every instance of the runner has
    tree_memory_mb: Amount = 512  # the same of a run and of all that is alive below it, each counted with its memory_mb
    seconds: Seconds = 300.0  # wall time from start to end
    cpu_seconds: Seconds = 60.0  # time spent inside the sandbox, by the run and by all below it
    max_pages: Amount = 1024  # KV pages held at once
    max_embeds: Amount = 4096  # embed slots held at once
    max_queues: Amount = 256  # each open context has one
    max_output_bytes: Amount = 4 << 20  # events: text, logs, emitted values, result
    max_message_bytes: Amount = 8 << 20  # one call
    max_unread_bytes: Amount = 64 << 20  # answers that the program has not taken
    max_open_calls: Amount = 1024  # calls that have not ended
    max_open_bytes: Amount = 64 << 20  # of the large ones among them, together: they lie in the server
    max_queue_depth: Amount = 1024  # open calls of one queue
    max_log_lines_per_s: Amount = 1000  # logged or printed; ten seconds' worth may come at once
    max_children: Amount = 16  # child programs alive at once, those of its children included
    max_file_bytes: Amount = 0  # of files of its own, in the sandbox; 0 is none at all
    max_state_bytes: Amount = 4 << 20  # of each string store that the run writes

    def capped(self, caps: "Limits") -> "Limits":
        """These limits, none above the caps."""
        return Limits(*(min(getattr(self, name), getattr(caps, name)) for name in self.__struct_fields__))
