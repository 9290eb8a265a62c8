"""Kernels that come to the device before those in front of them have ended: programmatic dependent launch.

A kernel lets the next one come as soon as all its own programs have begun, and then waits until everything before it is
done. What lies between two launches is hidden so, and weights may be on their way to the second-level cache meanwhile.
Never changes what a kernel computes.
"""

from functools import cache

import torch
import triton
import triton.language as tl

ALLOWED = True
"""Whether kernels come early where they can: set to False, to measure what it gives."""

_FIRST_CAPABILITY = 9  # Hopper


def options(device: torch.device) -> dict[str, bool]:
    """What a launch of a kernel with `EARLY` is given."""
    return {"EARLY": True, "launch_pdl": True} if can_be_early(device) else {"EARLY": False}


def can_be_early(device: torch.device) -> bool:
    return ALLOWED and device.type == "cuda" and _major(device) >= _FIRST_CAPABILITY


@cache
def _major(device: torch.device) -> int:
    return torch.cuda.get_device_capability(device)[0]


@triton.jit
def wait_for_others(EARLY: tl.constexpr):
    """First of all in every kernel that has `EARLY`, but for what only reads what no kernel writes: whoever comes next
    relies on this kernel having waited for those before it."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def fetch(at):
    """Has what is at these addresses on its way to the second-level cache; 128 bytes of each."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )
