"""What a call of control completes with, as data. Never holds a tensor.

Made by control, read by the runtime and the program.
"""

from typing import Literal, TypeAlias

import msgspec

from loopwright.core.calls import LogprobKind
from loopwright.core.errors import ErrorInfo
from loopwright.core.ids import CallId, PageName, QueueName
from loopwright.core.samplers import StateValue


class Result(msgspec.Struct, frozen=True, tag_field="result", omit_defaults=True):
    """What every result has in common."""


class Done(Result, frozen=True, tag="done"):
    """The call completed and has nothing to say."""


TopLogprobs: TypeAlias = tuple[tuple[int, float], ...]
"""The most probable tokens of one place and their log-probabilities, falling, the lowest id first on a tie."""


class Distribution(msgspec.Struct, frozen=True, omit_defaults=True):
    """Exact log-probabilities: the normaliser runs over the whole vocabulary.

    `ids` are little-endian int32, `logprobs` little-endian float32, by falling probability, must-include ids last;
    in JSON both are base64. `covered` is the probability mass of the ids listed, `tail_mass` = 1 - covered,
    `truncated` says whether ids of non-zero probability are missing. With `allowed` in the request all of this is of
    the masked distribution, and `allowed_mass` is what the mask had before."""

    ids: bytes
    logprobs: bytes
    covered: float
    tail_mass: float
    truncated: bool
    entropy: float | None = None  # in nats, of the whole distribution; if asked
    allowed_mass: float | None = None
    logits: bytes | None = None  # [vocab_size] little-endian float32, before any mask; if asked
    ranks: bytes | None = None  # little-endian int32, parallel to ids; 1 is the most probable; if asked


class Forwarded(Result, frozen=True, tag="forwarded"):
    """A forward, a distribution or a sample completed. `kv_len` and `num_pages` are those of the page list now.

    `tokens` are the drafts that were accepted and the token sampled after them, `token` and `logprob` the last of them.
    Log-probabilities are of the kind that Sampling asked for, which `logprob_kind` repeats."""

    kv_len: int = 0
    num_pages: int = 0
    distributions: tuple[Distribution, ...] = ()
    token: int | None = None
    logprob: float | None = None
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[TopLogprobs, ...] = ()  # one for each token, if asked
    logprob_kind: LogprobKind | None = None
    cached_tokens: int = 0  # inputs that did not run, because their KV was there
    draft_cost: float | None = None  # what its drafts took, in steps without them; if steps have been measured


StopReason = Literal["stop", "stop_token", "length", "interrupted", "grammar_end", "entropy"]


class Segment(Result, frozen=True, tag="segment"):
    """A segment ended.

    `tokens` are all that were sampled, `logprobs` their log-probabilities, of `logprob_kind`. The context keeps the
    first `num_kept`: a stop token is not kept, nor are the tokens that a stop string reaches into; `remainder` is the
    text of a dropped token that comes before the stop string (bytes that are no UTF-8 by themselves are dropped).
    `kv_len` never exceeds what is kept: a token's KV exists once its own forward has run, so the last token has none.
    `freed` names the pages that left its window; `kv_len` and `num_pages` count them and the tokens in them too.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    num_kept: int
    remainder: str
    reason: StopReason
    stop: str | int | None  # the string or token that ended it
    kv_len: int
    num_pages: int
    freed: tuple[PageName, ...] = ()
    top_logprobs: tuple[TopLogprobs, ...] = ()  # one for each token, if asked
    logprob_kind: LogprobKind | None = None
    sampler_state: dict[str, StateValue] = {}  # what its sampler carried at the end
    cached_tokens: int = 0  # of the prompt: those that did not run, because their KV was there


class Progress(Result, frozen=True, tag="progress"):
    """Tokens of a segment that is still running, in order. Of a watched one, `first` is the index of the first of them,
    and `num_vetoes` how many vetoes it had taken when they were sampled: fewer than were sent, and they are void.

    `num_allowed` says, if it was asked for and there is a grammar, among how many tokens each was chosen: 1 where the
    grammar forced it."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    top_logprobs: tuple[TopLogprobs, ...] = ()
    logprob_kind: LogprobKind | None = None
    first: int = 0
    num_vetoes: int = 0
    num_allowed: tuple[int, ...] = ()


class Imported(Result, frozen=True, tag="imported"):
    """Pages were imported: the KV of `kv_len` tokens, in `num_pages` pages. `positions`, `tokens` and `note` are as
    whoever exported them said; the next token stands after the last position."""

    kv_len: int
    num_pages: int
    positions: tuple[int, ...]
    tokens: tuple[int, ...] = ()
    note: str = ""


class ExportInfo(msgspec.Struct, frozen=True):
    """One export, as its identity sees it."""

    name: str
    kv_len: int
    num_pages: int
    persistent: bool


class ExportList(Result, frozen=True, tag="exports"):
    """Exports, by name."""

    exports: tuple[ExportInfo, ...]


CallState = Literal["waiting", "ready", "running", "failed"]


class CallInfo(msgspec.Struct, frozen=True):
    """An open call: waiting for others or for its program, ready to run (or for pages), running, or failed and waiting
    for its turn."""

    call: CallId
    op: str
    state: CallState


class QueueInfo(msgspec.Struct, frozen=True):
    """A queue, with its open calls in order. `failure` is what the next call would fail with."""

    queue: QueueName
    priority: int
    calls: tuple[CallInfo, ...]
    failure: ErrorInfo | None = None


class DebugInfo(Result, frozen=True, tag="debug"):
    """What a run holds, of what it may hold."""

    num_pages: int
    max_pages: int
    num_page_names: int
    num_embeds: int
    max_embeds: int
    num_open_calls: int
    max_open_calls: int
    queues: tuple[QueueInfo, ...]


CallResult: TypeAlias = Done | Forwarded | Segment | Progress | Imported | ExportList | DebugInfo


class CallTiming(msgspec.Struct, frozen=True, array_like=True):
    """When a call that was for the engine did what, on the machine's monotonic clock, and how many tokens it had. None
    is a time that did not come. For the runtime's books: no program sees it."""

    issued_s: float
    started_s: float | None  # its first step was formed
    first_s: float | None  # of a segment: its first token was there
    ended_s: float
    prompt_tokens: int  # inputs of rows of more than one, cached ones included
    cached_tokens: int  # those of them that did not run
    generated_tokens: int


class Completion(msgspec.Struct, frozen=True):
    """One answer to one call. A Progress leaves the call open; any other result, or an error, ends it."""

    call_id: CallId
    result: CallResult | None = None
    error: ErrorInfo | None = None
    timing: CallTiming | None = None  # if it is final, and control measures

    @property
    def is_final(self) -> bool:
        return not isinstance(self.result, Progress)
