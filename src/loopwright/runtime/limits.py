"""What one run may use. Never enforces it: sandboxes, the host and control do. Built from a program's metadata.

The server's caps bound what a program asks for.
"""

import msgspec


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run's limits. Sizes say their unit; times are in seconds."""

    memory_mb: int = 64  # MiB of linear memory beyond what every instance of the runner has
    seconds: float = 300.0  # wall time from start to end
    cpu_seconds: float = 60.0  # time spent inside the sandbox
    max_pages: int = 1024  # KV pages held at once
    max_output_bytes: int = 4 << 20  # events: text, logs, emitted values, result
    max_message_bytes: int = 8 << 20  # one call
    max_open_calls: int = 1024

    def capped(self, caps: "Limits") -> "Limits":
        """These limits, none above the caps."""
        return Limits(*(min(getattr(self, name), getattr(caps, name)) for name in self.__struct_fields__))
