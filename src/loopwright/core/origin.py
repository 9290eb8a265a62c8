"""Where a run comes from: the request that asked for it, and the trace that it belongs to. Never records anything.

Made by the server for each request, and by the launcher for a child. The header is that of W3C Trace Context, level 1.
"""

import re
import secrets
from collections.abc import Mapping

import msgspec

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
MAX_STATE_CHARS = 512
SAMPLED = 1


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """The request's id, its trace headers, and when it came, on the machine's monotonic clock (None: with the run)."""

    request_id: str = ""
    traceparent: str = ""
    tracestate: str = ""
    received_s: float | None = None


class TraceContext(msgspec.Struct, frozen=True):
    """A span of ours in a trace: `parent_id` is the span that it lies in, "" if it is the first."""

    trace_id: str
    span_id: str
    parent_id: str
    is_sampled: bool
    state: str = ""

    def headers(self) -> dict[str, str]:
        """For who is called within the span."""
        flags = SAMPLED if self.is_sampled else 0
        headers = {"traceparent": f"00-{self.trace_id}-{self.span_id}-{flags:02x}"}
        return {**headers, "tracestate": self.state} if self.state else headers


def begin_span(origin: Origin, sample_ratio: float) -> TraceContext:
    """A span in the origin's trace, which has decided whether it is recorded; without one, in a new trace, of which so
    many are."""
    span_id = secrets.token_hex(8)
    found = _TRACEPARENT.fullmatch(origin.traceparent)
    if found is None or not int(found[1], 16) or not int(found[2], 16):
        trace_id = secrets.token_hex(16)
        return TraceContext(trace_id, span_id, "", int(trace_id[16:], 16) < sample_ratio * (1 << 64))
    is_sampled = bool(int(found[3], 16) & SAMPLED)
    return TraceContext(found[1], span_id, found[2], is_sampled, origin.tracestate[:MAX_STATE_CHARS])


def within(origin: Origin, headers: Mapping[str, str]) -> Origin:
    """Of who was started by what came from there, and sends these trace headers."""
    return Origin(origin.request_id, headers.get("traceparent", ""), headers.get("tracestate", ""))


def passed_on(origin: Origin) -> dict[str, str]:
    """The trace headers of who has no span of his own: what he got, if that is well-formed."""
    if not _TRACEPARENT.fullmatch(origin.traceparent):
        return {}
    headers = {"traceparent": origin.traceparent}
    return {**headers, "tracestate": origin.tracestate[:MAX_STATE_CHARS]} if origin.tracestate else headers
