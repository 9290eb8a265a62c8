"""Trace headers: what is taken over, what begins anew, and what is passed on."""

import pytest

from loopwright.core.origin import MAX_STATE_CHARS, Origin, begin_span, passed_on

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{PARENT}-01"


def test_a_span_of_a_given_trace_keeps_its_id_and_decision_and_is_the_parent_of_what_it_calls() -> None:
    span = begin_span(Origin(traceparent=GIVEN, tracestate="a=b"), sample_ratio=0.0)
    assert (span.trace_id, span.parent_id, span.is_sampled) == (TRACE, PARENT, True)
    assert span.headers() == {"traceparent": f"00-{TRACE}-{span.span_id}-01", "tracestate": "a=b"}
    assert span.span_id != PARENT
    unsampled = begin_span(Origin(traceparent=GIVEN[:-1] + "0"), sample_ratio=1.0)
    assert not unsampled.is_sampled
    assert unsampled.headers()["traceparent"].endswith("-00")


@pytest.mark.parametrize(
    "header",
    ["", "junk", GIVEN[3:], "01" + GIVEN[2:], f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", GIVEN + "-x"],
)
def test_without_a_well_formed_header_a_trace_begins(header: str) -> None:
    span = begin_span(Origin(traceparent=header, tracestate="a=b"), sample_ratio=1.0)
    assert span.trace_id != TRACE
    assert (span.parent_id, span.state, span.is_sampled) == ("", "", True)
    assert not begin_span(Origin(traceparent=header), sample_ratio=0.0).is_sampled


def test_who_has_no_span_passes_on_what_is_well_formed() -> None:
    long = "a=" + "b" * 1000
    assert passed_on(Origin(traceparent=GIVEN)) == {"traceparent": GIVEN}
    assert len(passed_on(Origin(traceparent=GIVEN, tracestate=long))["tracestate"]) == MAX_STATE_CHARS
    assert passed_on(Origin(traceparent="x\r\ny: z")) == {}
