"""How much memory of this machine the Wasm instances of this process take. Never touches one. Asked for the metrics.

An instance's memory is mapped in front of a reservation of gigabytes that nobody may touch: so its mappings are told
from all others. What counts of them is what was written to, for the rest belongs to the runner's file.
"""

import re
from pathlib import Path

MIN_RESERVED_BYTES = 1 << 30

_MAPPING = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) (\S+)", re.MULTILINE)
_DIRTY = re.compile(rb"^Private_Dirty: +(\d+) kB", re.MULTILINE)


def instance_bytes(smaps: Path = Path("/proc/self/smaps")) -> int | None:
    """Of all instances together; None where the machine does not tell. Takes milliseconds: for a thread."""
    try:
        text = smaps.read_bytes()
    except OSError:
        return None
    total = group = 0
    group_end = -1
    for mapping, dirty in zip(_MAPPING.finditer(text), _DIRTY.finditer(text), strict=False):
        start, end, mode = int(mapping[1], 16), int(mapping[2], 16), mapping[3]
        if mode.startswith(b"rw"):
            group = (group if start == group_end else 0) + (int(dirty[1]) << 10)
            group_end = end
            continue
        if mode.startswith(b"---") and start == group_end and end - start >= MIN_RESERVED_BYTES:
            total += group
        group, group_end = 0, -1
    return total
