"""Says whether a call would read what nobody wrote: there may be what another run left. Never changes anything.

Called when a call is about to run, and for an export when its turn has come. Bits that are promised will be written
before the call runs.
"""

from collections.abc import Mapping, Sequence

from loopwright.control.feeds import Feed
from loopwright.control.joining import range_bits
from loopwright.control.ordering import AnyResource, OpenCall, Page
from loopwright.core.calls import CopyPage, ShiftKv
from loopwright.core.errors import BadRequest

_NOTHING: Mapping[AnyResource, int] = {}


def check_reads(call: OpenCall, block_size: int, promised: Mapping[AnyResource, int] = _NOTHING) -> None:
    """Raises BadRequest if not all that the call reads was written, or is promised."""
    for embed in call.embed_reads:
        if not embed.written and embed not in promised:
            raise BadRequest("an embed that the call reads was never written", hint="embed_text or forward fills it")
    if isinstance(call.call, CopyPage):
        size, offset = call.call.size, call.call.source_offset
        if range_bits(offset, offset + size) & ~_written(call.pages[0], promised):
            raise BadRequest(
                f"source: offsets {offset} … {offset + size - 1} are not all written", field="source_offset"
            )
    elif isinstance(call.call, ShiftKv):
        _check_shift(call.pages, call.call, block_size, promised)
    elif isinstance(call.work, Feed):
        num_known = 0 if call.base is None else len(call.base)
        check_kv(call.pages, call.work.start_kv_len, block_size, promised=promised, num_known=num_known)


def check_kv(
    pages: Sequence[Page],
    kv_len: int,
    block_size: int,
    field: str = "kv_len",
    promised: Mapping[AnyResource, int] = _NOTHING,
    num_known: int = 0,
) -> None:
    """Raises BadRequest if the pages do not hold so much KV. The first `num_known` are known to be full."""
    num_full, num_tail = divmod(kv_len, block_size)
    full = (1 << block_size) - 1
    for place in range(num_known, num_full):
        if pages[place].written != full and _written(pages[place], promised) != full:
            raise _no_kv(field, place, pages[place], block_size)
    if num_tail and range_bits(0, num_tail) & ~_written(pages[num_full], promised):
        raise _no_kv(field, num_full, pages[num_full], num_tail)


def _check_shift(pages: Sequence[Page], call: ShiftKv, block_size: int, promised: Mapping[AnyResource, int]) -> None:
    start = call.start % block_size
    for place, page in enumerate(pages):
        first = place * block_size
        bits = range_bits(max(start - first, 0), min(start + call.size - first, block_size))
        if bits & ~_written(page, promised):
            raise BadRequest(
                f"start: tokens {call.start} … {call.start + call.size - 1} are not all written", field="start"
            )


def _written(page: Page, promised: Mapping[AnyResource, int]) -> int:
    return page.written | promised.get(page, 0)


def _no_kv(field: str, place: int, page: Page, num_needed: int) -> BadRequest:
    num_written = (~page.written & (page.written + 1)).bit_length() - 1
    return BadRequest(
        f"{field}: pages[{place}] has KV for its first {num_written} tokens, and {num_needed} are counted",
        field=field,
    )
