"""Exports the spans of runs through OpenTelemetry, in its conventions for generative AI. Never on the path of a run.

The one module that imports OpenTelemetry: the extra `otel`. Opened by `system` and by workers when an endpoint is
configured. A run's span has a child for each stretch of a phase, and these add up to it.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from loopwright.compose.config import TelemetryConfig
from loopwright.core.errors import BadRequest
from loopwright.core.origin import TraceContext
from loopwright.runtime.run_span import RunSpan
from loopwright.runtime.tool_config import with_environment

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

PROVIDER = "loopwright"
INTERNAL = "INTERNAL"
EXPORT_S = 3.0  # for one export, its retries included: a collector that is gone does not hold up the end for longer


@contextmanager
def open_spans(config: TelemetryConfig) -> Iterator["OtelSpans | None"]:
    """Sends what is left at the end. None without an endpoint. Raises BadRequest if OpenTelemetry is not installed."""
    if not config.otlp_endpoint:
        yield None
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 (an extra)
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 (an extra)
    except ImportError:
        raise BadRequest(
            "telemetry.otlp_endpoint: OpenTelemetry is not installed",
            hint="pip install 'loopwright[otel]'",
            field="telemetry.otlp_endpoint",
        ) from None
    headers = with_environment(config.otlp_headers, "telemetry.otlp_headers", set())
    processor = BatchSpanProcessor(OTLPSpanExporter(config.otlp_endpoint, headers=headers, timeout=EXPORT_S))
    try:
        yield OtelSpans(processor, config.sample_ratio)
    finally:
        processor.shutdown()  # type: ignore[no-untyped-call]


class OtelSpans:
    """A SpanSink over one processor."""

    def __init__(self, processor: "SpanProcessor", sample_ratio: float = 1.0) -> None:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 (an extra)

        self.sample_ratio = sample_ratio
        self._processor = processor
        self._resource = Resource.create({"service.name": PROVIDER})

    def ended(self, span: RunSpan) -> None:
        if not span.context.is_sampled:
            return
        ended = span.ended
        context, offset_s = span.context, span.wall_offset_s
        for one in ended.stretches:
            attributes: dict[str, Any] = {"loopwright.phase": one.phase, "loopwright.stretches": one.count}
            end_s = one.start_s + one.seconds
            self._end(one.phase, _child(context), attributes, one.start_s + offset_s, end_s + offset_s)
        for tool in ended.tools:
            attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool.name}
            if tool.code != "ok":
                attributes["error.type"] = tool.code
            name, times = f"execute_tool {tool.name}", (tool.start_s + offset_s, tool.end_s + offset_s)
            self._end(name, _child(context), attributes, *times, is_error=tool.code != "ok")
        operation = "chat" if span.program == "chat" and span.is_builtin else "invoke_agent"
        name = f"{operation} {span.model if operation == 'chat' else span.program}"
        times = (ended.start_s + offset_s, ended.end_s + offset_s)
        self._end(name, context, _attributes(span, operation), *times, kind="SERVER", is_error=span.code != "ok")

    def _end(
        self,
        name: str,
        context: TraceContext,
        attributes: dict[str, Any],
        start_s: float,
        end_s: float,
        *,
        kind: str = INTERNAL,
        is_error: bool = False,
    ) -> None:
        from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415 (an extra)
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415 (an extra)
        from opentelemetry.trace import SpanKind, Status, StatusCode  # noqa: PLC0415 (an extra)

        span = ReadableSpan(
            name,
            _span_context(context, context.span_id),
            _span_context(context, context.parent_id) if context.parent_id else None,
            self._resource,
            attributes,
            kind=SpanKind[kind],
            status=Status(StatusCode.ERROR) if is_error else Status(StatusCode.UNSET),
            start_time=round(start_s * 1e9),
            end_time=round(end_s * 1e9),
            instrumentation_scope=InstrumentationScope(PROVIDER),
        )
        self._processor.on_end(span)


def _child(context: TraceContext) -> TraceContext:
    return TraceContext(context.trace_id, secrets.token_hex(8), context.span_id, context.is_sampled, context.state)


def _span_context(context: TraceContext, span_id: str) -> Any:  # noqa: ANN401 (an extra's type)
    from opentelemetry.trace import SpanContext, TraceFlags, TraceState  # noqa: PLC0415 (an extra)

    state = TraceState.from_header([context.state]) if context.state else None
    flags = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(int(context.trace_id, 16), int(span_id, 16), span_id == context.parent_id, flags, state)


def _attributes(span: RunSpan, operation: str) -> dict[str, Any]:
    """In OpenTelemetry's names where it has some."""
    ended, usage = span.ended, span.ended.usage
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": span.model,
        "gen_ai.response.model": span.model,
        "gen_ai.response.id": span.run_id,
        "gen_ai.agent.name": span.program,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.output_tokens": usage.generated_tokens,
        "loopwright.run.code": span.code,
        "loopwright.program.cpu_s": ended.cpu_s,
    }
    for phase, seconds in ended.totals().items():
        attributes[f"loopwright.{phase}_s"] = seconds
    if ended.first_token_s is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = ended.first_token_s - ended.start_s
    if span.code != "ok":
        attributes["error.type"] = span.code
    if span.request_id:
        attributes["loopwright.request.id"] = span.request_id
    if span.tenant:
        attributes["loopwright.tenant"] = span.tenant
    return attributes
