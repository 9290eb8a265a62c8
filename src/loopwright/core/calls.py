"""The calls that a program may ask of the control layer, as data. Never executes one.

Decoded by the runtime, run by control.

A call that names a queue keeps its place in that queue. Names of queues, pages and embeds are chosen by the program.
Calls that only change names (create, allocate, free, share) take effect and complete when they are issued; the others
run in order, and a failed one poisons those behind it up to a ClearQueue. Freeing works on a poisoned queue too.
KV geometry: token number i of a page list lies in page `pages[i // page_size]`, offset `i % page_size`;
`kv_len` is how many tokens of the list hold KV before the call. Positions are explicit and may have gaps.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, field

from loopwright.core.call_base import Call
from loopwright.core.grammars import CallsInText, Grammar, HeldText
from loopwright.core.ids import EmbedName, PageName, QueueName, TokenId
from loopwright.core.samplers import StateValue, TracedSampler
from loopwright.core.watch_calls import Watch, WatchCall

NonNegative = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Position = Annotated[int, Meta(ge=0, lt=2**31)]

Visibility: TypeAlias = tuple[NonNegative, ...]
"""Which KV slots one query token sees, as run lengths that alternate hidden, visible, hidden …, from slot 0.
What the runs do not reach is hidden. A token may see its own slot and earlier ones only."""


MAX_DRAFTS = 256
"""Drafts of one call: they run in one row, which no budget of a step may cut."""

LogprobKind: TypeAlias = Literal["raw", "processed"]
"""raw: the model's own distribution. processed: the one that the token was drawn from, after every field of Sampling
that acts on it, normalised; at temperature 0 that is the chosen token alone, with log-probability 0."""

Penalty = Annotated[float, Meta(ge=-2, le=2)]
Priority = Annotated[int, Meta(ge=-1, le=1)]
ExportName = Annotated[str, Meta(min_length=1, max_length=200)]
ExportNote = Annotated[str, Meta(max_length=1 << 20)]


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How one token is chosen from the logits: in the order of the fields from repetition_penalty to min_p, then one
    draw keyed by (seed, position). docs/sampling.md defines each.

    Penalties count what is listed and nothing else, but that a segment counts what it samples as generated, and a
    verified draft those before it. Repetition counts both lists, presence and frequency only `generated`."""

    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: dict[int, float] = {}
    allowed: tuple[TokenId, ...] | None = None  # only these may be chosen
    temperature: Annotated[float, Meta(ge=0, le=100)] = 0.0  # 0 is greedy: the highest logit, the lowest id on a tie
    top_k: NonNegative = 0  # 0 is off
    typical_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    seed: Annotated[int, Meta(ge=0, lt=2**62)] = 0
    seen: tuple[TokenId, ...] = ()  # tokens that stand before, for repetition_penalty
    generated: tuple[TokenId, ...] = ()  # those of them that the model wrote, for all penalties
    logprobs: LogprobKind = "raw"  # what is reported with a token
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] = 0  # so many of the most probable tokens too, each time

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


class DistributionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Asks for the exact distribution of the token that follows input token `index` (-1 is the last one).

    With `allowed` it is the distribution over those tokens: the others are masked, and what is left sums to 1."""

    index: int = -1
    k: Positive = 256  # the k most probable; may be the whole vocabulary
    must_include: tuple[TokenId, ...] = ()
    allowed: tuple[TokenId, ...] | None = None
    entropy: bool = False
    logits: bool = False  # the model's own, of the whole vocabulary
    ranks: bool = False  # where each id that is listed stands in the whole order


class CreateQueue(Call, frozen=True, kw_only=True, tag="create_queue"):
    """Makes a queue. Answered by control with Done."""

    queue: QueueName
    model: str = ""  # "" is the run's own
    priority: Priority = 0  # -1 low, 0 normal, 1 high


class SetPriority(Call, frozen=True, kw_only=True, tag="set_priority"):
    """Changes a queue's priority at once: for calls that it is given later, and for those in it that have not ended.
    A chunk of a prompt that is running stays where it is; what is left of it moves. Works on a poisoned queue too."""

    queue: QueueName
    priority: Priority


class DebugQuery(Call, frozen=True, kw_only=True, tag="debug_query"):
    """What the run holds, and its queues, or one of them, with their open calls in order. A snapshot, taken at once
    and out of turn."""

    queue: QueueName | None = None
    model: str = ""  # without a queue: whose queues; "" is the run's own


class Synchronize(Call, frozen=True, kw_only=True, tag="synchronize"):
    """Completes with Done when every earlier call of the queue has completed; fails as Poisoned if one failed."""

    queue: QueueName


class ClearQueue(Call, frozen=True, kw_only=True, tag="clear_queue"):
    """Forgets the failure that poisoned the queue, so that later calls run again. Done."""

    queue: QueueName


class AllocatePages(Call, frozen=True, kw_only=True, tag="allocate_pages"):
    """Binds each name to a fresh page of `page_size` tokens. Done, or OutOfPages, and none is bound, if the run or the
    pool can never hold so many. If no block is free now, the call that writes there waits for one."""

    queue: QueueName
    pages: tuple[PageName, ...]


class FreePages(Call, frozen=True, kw_only=True, tag="free_pages"):
    """Unbinds the names at once; a block is free when its last name and its last call are gone. Done."""

    queue: QueueName
    pages: tuple[PageName, ...]


class SharePages(Call, frozen=True, kw_only=True, tag="share_pages"):
    """Binds each name of `targets` to the block of the same place in `sources`, by reference count. Done.
    A shared block can be read by all and written by none."""

    queue: QueueName
    sources: tuple[PageName, ...]
    targets: tuple[PageName, ...]


class MaskPage(Call, frozen=True, kw_only=True, tag="mask_page"):
    """Hides tokens of a page from every forward issued from now on that names it so, until the next mask or the name is
    freed; `keep` says of each of its tokens whether it is seen. Done.

    The mask is the name's: a name of the same block from elsewhere sees what it saw, and so does a fork's; sharing the
    page passes the mask on. A page of which nothing is seen costs a forward nothing; one that is seen in part costs it
    a mask. Copies take masked tokens too. A forward's own tokens are never hidden from it."""

    queue: QueueName
    page: PageName
    keep: tuple[bool, ...]


class ExportPages(Call, frozen=True, kw_only=True, tag="export_pages"):
    """Lends pages to every run of the same identity, by name, when the call's turn comes. The pages must hold the KV of
    exactly so many tokens as there are `positions`. From its issue on nobody writes to them while they are shared.

    `positions`, `tokens` and `note` go to who imports, as they are: control cannot read them out of KV. Goes with the
    run, unless `persistent`: then it stays until it is unexported."""

    queue: QueueName
    name: ExportName
    pages: Annotated[tuple[PageName, ...], Meta(min_length=1)]
    positions: Annotated[tuple[Position, ...], Meta(min_length=1)]
    tokens: tuple[TokenId, ...] = ()  # none, or one for each position
    note: ExportNote = ""  # whatever else an importer needs
    persistent: bool = False


class UnexportPages(Call, frozen=True, kw_only=True, tag="unexport_pages"):
    """Ends an export, whichever run of the identity made it. Who has imported the pages keeps them."""

    queue: QueueName
    name: ExportName


class ImportPages(Call, frozen=True, kw_only=True, tag="import_pages"):
    """Binds `pages`, as many names as the export has pages, to its blocks, by reference count; no KV is copied. The
    names are bound when the call is issued, and free again if it fails. They count as pages that this run holds."""

    queue: QueueName
    name: ExportName
    pages: Annotated[tuple[PageName, ...], Meta(min_length=1)]


class ExportedPages(Call, frozen=True, kw_only=True, tag="exported_pages"):
    """The exports of this identity whose names begin with `prefix`, by name."""

    prefix: str = ""
    model: str = ""  # "" is the run's own


class CopyPage(Call, frozen=True, kw_only=True, tag="copy_page"):
    """Copies the KV of `size` tokens from one page to another. Done."""

    queue: QueueName
    source: PageName
    target: PageName
    source_offset: NonNegative = 0
    target_offset: NonNegative = 0
    size: Positive


class ShiftKv(Call, frozen=True, kw_only=True, tag="shift_kv"):
    """Moves cached tokens start … start + size - 1 of the page list to positions `delta` higher, in place: their keys
    are rotated on, their values stay. Done, or BadRequest and nothing moved if a position would leave the model's
    context."""

    queue: QueueName
    pages: tuple[PageName, ...]
    start: NonNegative = 0
    size: Positive
    delta: Annotated[int, Meta(gt=-(2**31), lt=2**31)]


class AllocateEmbeds(Call, frozen=True, kw_only=True, tag="allocate_embeds"):
    """Binds each name to a slot that holds one vector and its position. Done."""

    queue: QueueName
    embeds: tuple[EmbedName, ...]


class FreeEmbeds(Call, frozen=True, kw_only=True, tag="free_embeds"):
    """Unbinds the names. Done."""

    queue: QueueName
    embeds: tuple[EmbedName, ...]


class EmbedText(Call, frozen=True, kw_only=True, tag="embed_text"):
    """Writes the embedding of each token, with its position, into the embed of the same place. Done."""

    queue: QueueName
    tokens: tuple[TokenId, ...]
    positions: tuple[Position, ...]
    embeds: tuple[EmbedName, ...]


class Forward(Call, frozen=True, kw_only=True, tag="forward"):
    """Runs the model on `inputs`, appends their KV after `kv_len`, and writes the final hidden states of the last
    len(outputs) inputs into `outputs`. Completes with Forwarded."""

    queue: QueueName
    pages: tuple[PageName, ...]
    kv_len: NonNegative
    inputs: tuple[EmbedName, ...]
    outputs: tuple[EmbedName, ...] = ()
    mask: tuple[Visibility, ...] | None = None  # one per input; None is causal over all that comes before


class ForwardWithAdapter(Forward, frozen=True, kw_only=True, tag="forward_with_adapter"):
    """As forward, through the weights of an adapter."""

    adapter: Annotated[str, Meta(min_length=1)]


class EmbedImage(Call, frozen=True, kw_only=True, tag="embed_image"):
    """Writes an image into as many embeds as embeds_needed says, each with its position."""

    queue: QueueName
    image: bytes
    positions: tuple[Position, ...]
    embeds: tuple[EmbedName, ...]


class NextDistribution(Call, frozen=True, kw_only=True, tag="next_distribution"):
    """The distribution over the token that follows the hidden state in `embed`. Completes with Forwarded."""

    queue: QueueName
    embed: EmbedName
    request: DistributionRequest = DistributionRequest()


class Sample(Call, frozen=True, kw_only=True, tag="sample"):
    """Chooses the token that follows the hidden state in `embed`, to stand at `position`. Completes with Forwarded."""

    queue: QueueName
    embed: EmbedName
    sampling: Sampling
    position: Position


class ForwardText(Call, frozen=True, kw_only=True, tag="forward_text"):
    """embed → forward → distribution or sample as one row of one step. Completes with Forwarded.

    With `grow_from`, pages that the tokens need beyond `pages` are bound to the names grow_from, grow_from + 1, …
    A call that fails leaves none of the pages bound that it grew.

    With `num_drafts` the last tokens are guesses, at positions one after the other. A token is sampled before the first
    of them and after each, by its own draw; drafts count for as long as they are what was sampled there. The answer's
    `tokens` are the accepted drafts and one more: what sampling one by one would have given. `kv_len` ends with the
    last accepted draft; pages that were bound for the others stay."""

    queue: QueueName
    pages: tuple[PageName, ...]
    grow_from: PageName | None = None
    kv_len: NonNegative
    tokens: Annotated[tuple[TokenId, ...], Meta(min_length=1)]
    positions: tuple[Position, ...]
    mask: tuple[Visibility, ...] | None = None
    distributions: tuple[DistributionRequest, ...] = ()
    sampling: Sampling | None = None  # choose the token that follows the last one
    num_drafts: Annotated[int, Meta(ge=0, le=MAX_DRAFTS)] = 0
    held: HeldText | None = None  # acts on the token after the last one, where its distributions' `allowed` would


class KvWindow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token sees the tokens at positions below `sinks`, and from the border of a page on that lies at or before
    its own position + 1 - size: at least the last `size`, itself included. A border is a multiple of the page size, so
    that nothing needs a mask when places and positions lie alike in pages.

    A page of which no token can be seen any more is freed, as by FreePages, in the step after that; of a watched
    segment, once no veto can go back to a token that sees it. Other names of it stay. Segment names the pages; if the
    segment fails, those that it freed stay so."""

    size: Positive
    sinks: NonNegative = 0
    positions: tuple[Position, ...] = ()  # of the kv_len cached tokens, in the order of their places


class Generate(Call, frozen=True, kw_only=True, tag="generate"):
    """A segment: runs `tokens`, then samples and runs one token after another until it ends. Completes with Segment.

    Equal, in tokens, KV length and pages, to a loop of ForwardText with one sampled token each. Pages grow by name from
    `grow_from`. With `progress`, each step's token is also sent as a Progress before the end. At least one token is
    sampled. A segment pauses while no page is free; if it fails, none of the pages that it grew stays bound.

    With `grammar` only tokens that continue a text of the grammar may be chosen, and stop tokens where the text is
    whole. Tokens that it forces are not sampled, but their log-probabilities are the model's as everybody's. The
    segment ends by itself, as "grammar_end", when nothing may follow.

    With `stop_entropy` the segment ends, as "entropy", before the first token in whose place the model's own
    distribution has more entropy (in nats): no token is sampled there, not even the first. What a grammar forces is not
    a choice, and is not asked.

    With `sampler` the program's own function chooses: it sees the logits after the fields of Sampling up to `allowed`,
    and a grammar's mask. The scores that it returns go on to the fields after that; a token that it returns is taken.
    `sampler_state` is what it finds at the first token.

    With `calls` no stop string is found in a call, and control tokens that begin or divide calls stand in the text.

    With `watch` tokens come as Progress, and the segment goes on only as the program acknowledges them. It ends when
    all are acknowledged, as if it had never run ahead; interrupted, it keeps those that were acknowledged."""

    queue: QueueName
    pages: tuple[PageName, ...]
    grow_from: PageName
    kv_len: NonNegative
    tokens: Annotated[tuple[TokenId, ...], Meta(min_length=1)]
    positions: tuple[Position, ...]
    sampling: Sampling = Sampling()
    max_tokens: Positive = 256
    stop: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(max_length=64)] = ()
    stop_tokens: tuple[TokenId, ...] = ()
    progress: bool = False
    explain: bool = False  # a Progress also says how many tokens the grammar let through
    grammar: Grammar | None = None
    window: KvWindow | None = None  # what its tokens see
    sampler: TracedSampler | None = None
    sampler_state: dict[str, StateValue] = field(default_factory=dict)
    calls: CallsInText | None = None
    watch: Watch | None = None
    stop_entropy: Annotated[float, Meta(gt=0)] | None = None


QueueCall: TypeAlias = (
    CreateQueue | SetPriority | DebugQuery | Synchronize | ClearQueue
    | AllocatePages | FreePages | SharePages | MaskPage | CopyPage | ShiftKv | AllocateEmbeds | FreeEmbeds
    | ExportPages | UnexportPages | ImportPages | ExportedPages
    | EmbedText | EmbedImage | Forward | ForwardWithAdapter | NextDistribution | Sample | ForwardText | Generate
    | WatchCall
)  # fmt: skip
"""Every call that control answers."""
