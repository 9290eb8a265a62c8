"""Every metric of a server: its name, kind, labels and meaning. Never counts anything: meters do.

Named in the style of the field, so that dashboards and alerts carry over; the exporter puts `loopwright:` before each
name. Tokens, times and bytes are what they say; `_perc` is a share from 0 to 1, as the field has it.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


class Metric:
    """One metric. Compared by identity: it is a key in what is counted by the step."""

    __slots__ = ("bounds", "kind", "labels", "meaning", "name")

    def __init__(self, kind: Kind, name: str, meaning: str, *labels: str, bounds: Sequence[float] = ()) -> None:
        self.kind, self.name, self.meaning, self.labels = kind, name, meaning, labels
        self.bounds = tuple(bounds)  # of a histogram: the upper bounds of its buckets, but the last, which has none


class Series(msgspec.Struct, frozen=True, array_like=True):
    """The value of a metric for one choice of labels, in the order of the metric's own."""

    metric: str
    labels: tuple[str, ...]
    value: float  # of a histogram: the sum of what was observed
    counts: tuple[int, ...] = ()  # of a histogram: how many were observed in each bucket alone, the last unbounded


class Measured(msgspec.Struct, frozen=True):
    """What was counted, by source: a control layer or a runtime. To merge is to unite: no source counts twice."""

    sources: dict[str, tuple[Series, ...]]

    def __or__(self, other: "Measured") -> "Measured":
        return Measured({**self.sources, **other.sources})


NOTHING_MEASURED = Measured({})

_STEP_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_TOKEN_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0)
_FIRST_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 80.0, 320.0)
_RUN_S = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

# Runs: requests are runs, whoever asked for them.
RUNS_RUNNING = Metric("gauge", "num_requests_running", "Runs whose program has been launched and is not over.")
RUNS_WAITING = Metric("gauge", "num_requests_waiting", "Runs that were admitted and wait for their launch.")
RUNS_ENDED = Metric("counter", "runs", "Runs that ended, by their final code.", "tenant", "program", "code")
E2E_S = Metric(
    "histogram", "e2e_request_latency_seconds", "From the request, or a run's start, to the final event.",
    "tenant", "program", bounds=_RUN_S,
)  # fmt: skip
FIRST_TOKEN_S = Metric(
    "histogram", "time_to_first_token_seconds", "From the request, or a run's start, to the first token of a segment.",
    "tenant", "program", bounds=_FIRST_S,
)  # fmt: skip
PHASE_S = Metric(
    "counter", "run_phase_seconds", "Where the time of runs went; the phases of a run add up to its latency.",
    "tenant", "program", "phase",
)  # fmt: skip
PROGRAM_CPU_S = Metric("counter", "program_cpu_seconds", "Time that programs computed.", "tenant", "program")
LAUNCH_S = Metric(
    "histogram", "launch_seconds", "From a run's admission until its program first calls or waits.", "sandbox",
    bounds=_FIRST_S,
)  # fmt: skip
LAUNCHES = Metric("counter", "launches", "Programs that were launched.", "sandbox")
HOST_CALL_S = Metric(
    "histogram", "call_seconds", "From a program's call to its answer, of those not answered at once.", "op",
    bounds=_STEP_S,
)  # fmt: skip
TOOL_CALLS = Metric(
    "counter", "tool_calls", "Calls of the server's tools, by ok or the code of their error.", "tool", "code"
)
SANDBOXES = Metric("gauge", "sandbox_instances", "Programs that are alive in a sandbox, running or waiting.", "sandbox")
SANDBOX_BYTES = Metric(
    "gauge",
    "sandbox_memory_bytes",
    "Memory of this machine that sandboxed programs take, instances kept ready included.",
)

# Tokens and KV, of each model
PROMPT_TOKENS = Metric(
    "counter", "prompt_tokens", "Prompt tokens of calls that ended, cached ones included.", "model", "tenant", "program"
)
CACHED_TOKENS = Metric(
    "counter", "prompt_tokens_cached", "Those of them that did not run, because their KV was there.",
    "model", "tenant", "program",
)  # fmt: skip
GENERATED_TOKENS = Metric(
    "counter", "generation_tokens", "Tokens that calls that ended sampled.", "model", "tenant", "program"
)
KV_BYTE_S = Metric(
    "counter", "kv_byte_seconds", "Bytes of KV held, times how long; what several runs share counts for each.",
    "model", "tenant", "program",
)  # fmt: skip
KV_USAGE = Metric("gauge", "kv_cache_usage_perc", "The share of KV blocks that runs hold; 1 is all.", "model")
KV_BLOCKS = Metric("gauge", "num_kv_blocks", "KV blocks of the engine.", "model")
CACHE_QUERIES = Metric(
    "counter", "prefix_cache_queries", "Prompt tokens looked for in the prefix cache; suspended work is not.", "model"
)
CACHE_HITS = Metric("counter", "prefix_cache_hits", "Those of them that it had.", "model")
EVICTIONS = Metric(
    "counter", "kv_evictions",
    "KV blocks taken away: `cache` from the prefix cache, `idle` from a run without calls, `suspended` from a run that "
    "was suspended.", "model", "reason",
)  # fmt: skip
SUSPENSIONS = Metric(
    "counter", "suspensions", "Runs suspended for want of KV blocks (elsewhere: preemptions).", "model"
)
RUNS_SUSPENDED = Metric("gauge", "num_requests_suspended", "Runs that are suspended.", "model")

# Calls and steps, of each model
CALLS_RUNNING = Metric("gauge", "num_calls_running", "Calls in the step that runs.", "model")
CALLS_WAITING = Metric("gauge", "num_calls_waiting", "Calls that are in no step, for whatever reason.", "model")
QUEUE_S = Metric(
    "histogram", "request_queue_time_seconds", "Of a call that ran: from its issue to its first step.", "model",
    bounds=_FIRST_S,
)  # fmt: skip
PREFILL_S = Metric(
    "histogram", "request_prefill_time_seconds", "Of a segment: from its first step to its first token.", "model",
    bounds=_FIRST_S,
)  # fmt: skip
DECODE_S = Metric(
    "histogram", "request_decode_time_seconds", "Of a segment: from its first token to its end.", "model", bounds=_RUN_S
)
TOKEN_S = Metric(
    "histogram", "inter_token_latency_seconds", "Between two rows of a segment that each gave tokens.", "model",
    bounds=_TOKEN_S,
)  # fmt: skip
STEP_ROWS = Metric("histogram", "step_rows", "Rows of a step.", "model", bounds=_SIZES)
STEP_TOKENS = Metric("histogram", "step_tokens", "Tokens of a step.", "model", bounds=_SIZES)
STEP_S = Metric("histogram", "step_seconds", "The engine's part of a step.", "model", bounds=_STEP_S)
SCHEDULE_S = Metric(
    "histogram", "schedule_seconds", "Forming a step, if one came of it.", "model", bounds=_STEP_S
)  # fmt: skip
STEP_SHAPES = Metric(
    "counter", "step_shapes", "Steps by shape: rows of one token, and tokens of longer rows, up to powers of two.",
    "model", "rows", "prompt_tokens",
)  # fmt: skip
FAILED_STEPS = Metric("counter", "failed_steps", "Steps that failed as a whole.", "model")

# What the server keeps by itself.
RESPONSES_KEPT = Metric("gauge", "num_responses_kept", "Responses that can be asked for again.")
RESPONSES_KEPT_BYTES = Metric("gauge", "responses_kept_bytes", "What they take, with what they went on from.")

METRICS = {one.name: one for one in list(vars().values()) if isinstance(one, Metric)}
"""All of them, by name, in the order of this file."""
