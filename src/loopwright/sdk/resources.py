"""The resource level: queues and the calls that go through them. Never keeps state of its own beyond a name.

`Context` stands on it; a program may step down to it at any point. Every method issues its call at once and returns a
future: issue, completion and observation are three different times.
"""

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, TypeAlias

from loopwright.sdk.argument_check import checked
from loopwright.sdk.output import Show, emit_fields
from loopwright.sdk.port import Operation, Port, Stream, current_port
from loopwright.sdk.run_state import RunState, run_state

Payload = dict[str, Any]
Answer: TypeAlias = asyncio.Future[Payload]


@checked
class Queue:
    """An ordered stream of calls. Calls of one queue keep their order; those of different queues are independent
    unless they touch the same page or embed."""

    def __init__(self, *, priority: int = 0, model: str = "") -> None:
        self._port: Port = current_port()
        self._priority = priority
        self.model = model  # "" is the run's own
        self.name = run_state().take_names()
        self._port.post({"op": "create_queue", "queue": self.name, "priority": priority, "model": model})

    @classmethod
    def of_context(cls, priority: int, model: str = "") -> "Queue":
        """One that a closed context left, or a new one: a run may have so many, and they end with it."""
        idle = run_state().idle_queues.get((priority, model))
        if not idle:
            return cls(priority=priority, model=model)
        queue = cls.__new__(cls)
        queue._port, queue._priority, queue.name = current_port(), priority, idle.pop()
        queue.model = model
        queue.post("clear_queue")  # whatever failed there was not this context's
        return queue

    def leave(self, state: RunState) -> None:
        """Leaves the queue, on which nothing runs that somebody waits for, to the next context."""
        state.idle_queues.setdefault((self._priority, self.model), []).append(self.name)

    def issue(self, op: str, **fields: Any) -> Answer:  # noqa: ANN401 (JSON)
        """Issues any call of the ABI on this queue; fields that are None are left out."""
        return self._port.issue(self._operation(op, fields))

    def post(self, op: str, **fields: Any) -> None:  # noqa: ANN401 (JSON)
        """Issues a call whose answer nobody waits for; if it fails, the queue's next call says why."""
        self._port.post(self._operation(op, fields))

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, so that nothing can be issued any more."""
        return self._port.is_closed

    def set_priority(self, priority: int) -> Answer:
        """-1 low, 0 normal, 1 high: at once, also for calls that wait already."""
        return self.issue("set_priority", priority=priority)

    def debug_query(self) -> Answer:
        """What the run holds, and this queue's open calls."""
        return self.issue("debug_query")

    def synchronize(self) -> Answer:
        """Completes when every earlier call has."""
        return self.issue("synchronize")

    def clear(self) -> Answer:
        """Forgets the failure that poisoned the queue."""
        return self.issue("clear_queue")

    def allocate_pages(self, pages: Sequence[int]) -> Answer:
        return self.issue("allocate_pages", pages=pages)

    def free_pages(self, pages: Sequence[int]) -> None:
        """Before the queue's next call, or when the program next waits."""
        self._port.defer(self._operation("free_pages", {"pages": list(pages)}))

    def share_pages(self, sources: Sequence[int], targets: Sequence[int]) -> Answer:
        return self.issue("share_pages", sources=sources, targets=targets)

    def export_pages(
        self,
        name: str,
        pages: Sequence[int],
        *,
        positions: Sequence[int],
        tokens: Sequence[int] = (),
        note: str = "",
        persistent: bool = False,
    ) -> Answer:
        """Lends pages that hold the KV of tokens at `positions` to other runs, until this run ends or they are
        unexported; if `persistent`, until they are unexported. `note` goes to who imports."""
        return self.issue(
            "export_pages",
            name=name,
            pages=pages,
            positions=positions,
            tokens=tokens,
            note=note,
            persistent=persistent,
        )

    def unexport_pages(self, name: str) -> Answer:
        """Ends an export; who has imported the pages keeps them."""
        return self.issue("unexport_pages", name=name)

    def import_pages(self, name: str, pages: Sequence[int]) -> Answer:
        """Binds `pages` to what is exported: {kv_len, num_pages, positions, tokens, note}. They can be read and
        shared; to write on, copy the partly filled tail."""
        return self.issue("import_pages", name=name, pages=pages)

    def copy_page(
        self, source: int, target: int, *, source_offset: int = 0, target_offset: int = 0, size: int
    ) -> Answer:
        """Copies the KV of `size` tokens."""
        return self.issue(
            "copy_page",
            source=source,
            target=target,
            source_offset=source_offset,
            target_offset=target_offset,
            size=size,
        )

    def shift_kv(self, pages: Sequence[int], delta: int, *, start: int = 0, size: int) -> Answer:
        """Moves cached tokens start … start + size - 1 of the pages to positions `delta` higher."""
        return self.issue("shift_kv", pages=pages, start=start, size=size, delta=delta)

    def mask_page(self, page: int, keep: Sequence[bool | int]) -> Answer:
        """Says of each token of a page whether forwards that are issued from now on and name the page so may see it."""
        return self.issue("mask_page", page=page, keep=[bool(one) for one in keep])

    def allocate_embeds(self, embeds: Sequence[int]) -> Answer:
        return self.issue("allocate_embeds", embeds=embeds)

    def free_embeds(self, embeds: Sequence[int]) -> None:
        self.post("free_embeds", embeds=embeds)

    def embed_text(self, tokens: Sequence[int], positions: Sequence[int], embeds: Sequence[int]) -> Answer:
        return self.issue("embed_text", tokens=tokens, positions=positions, embeds=embeds)

    def forward(
        self,
        pages: Sequence[int],
        kv_len: int,
        inputs: Sequence[int],
        outputs: Sequence[int] = (),
        mask: Sequence[Sequence[int]] | None = None,
    ) -> Answer:
        return self.issue("forward", pages=pages, kv_len=kv_len, inputs=inputs, outputs=outputs, mask=mask)

    def forward_with_adapter(
        self,
        adapter: str,
        pages: Sequence[int],
        kv_len: int,
        inputs: Sequence[int],
        **options: Any,  # noqa: ANN401 (outputs and mask, as for forward)
    ) -> Answer:
        """As forward, through an adapter's weights."""
        forward = {"pages": pages, "kv_len": kv_len, "inputs": inputs, **options}
        return self.issue("forward_with_adapter", adapter=adapter, **forward)

    def embed_image(self, image: bytes, positions: Sequence[int], embeds: Sequence[int]) -> Answer:
        """Fills as many embeds as `embeds_needed` says."""
        return self.issue("embed_image", image=_base64(image), positions=positions, embeds=embeds)

    def next_distribution(self, embed: int, *, k: int = 256, **request: Any) -> Answer:  # noqa: ANN401 (JSON)
        """Fields of `request` as in the ABI's distribution request."""
        return self.issue("next_distribution", embed=embed, request={"k": k, **request})

    def sample(self, embed: int, sampling: Payload, position: int) -> Answer:
        return self.issue("sample", embed=embed, sampling=sampling, position=position)

    def forward_text(self, **fields: Any) -> Answer:  # noqa: ANN401 (JSON)
        """embed → forward → distribution or sample in one step; fields as in the ABI's forward_text."""
        return self._port.issue(self._operation("forward_text", fields))

    def segment(self, *, emit: bool | Show, stream: bool, **generate: Any) -> Stream:  # noqa: ANN401 (JSON)
        """A segment with text; fields as in the ABI's generate."""
        inner = self._operation("generate", generate)
        return self._port.stream({"op": "segment", "generate": inner, "stream": stream, **emit_fields(emit)})

    def _operation(self, op: str, fields: Payload) -> Operation:
        operation: Operation = {"op": op, "queue": self.name}
        for name, value in fields.items():
            if value is not None:
                operation[name] = list(value) if type(value) is range else value  # JSON has no ranges
        return operation


@checked
def describe(*, model: str = "", include: Sequence[str] = ()) -> Answer:
    """{run, version, seed, model}; with `include` also "arguments" or "prompt_template"."""
    return current_port().issue({"op": "describe", "model": model, "include": include})


@checked
def models(*, traits: Sequence[str] = ()) -> Answer:
    """{models}: those that have all of `traits`."""
    return current_port().issue({"op": "models", "traits": traits})


@checked
def exported_pages(prefix: str = "", *, model: str = "") -> Answer:
    """{exports}: those whose names begin with `prefix`, each {name, kv_len, num_pages, persistent}."""
    return current_port().issue({"op": "exported_pages", "prefix": prefix, "model": model})


@checked
def debug_query(*, model: str = "") -> Answer:
    """What the run holds, and its queues with their open calls."""
    return current_port().issue({"op": "debug_query", "model": model})


@checked
def adapters(*, model: str = "") -> Answer:
    """{adapters}: the names that forward_with_adapter takes."""
    return current_port().issue({"op": "adapters", "model": model})


@checked
def embeds_needed(image: bytes, *, model: str = "") -> Answer:
    """{num_embeds} that embed_image fills for an image."""
    return current_port().issue({"op": "embeds_needed", "image": _base64(image), "model": model})


@checked
def vocabulary(*, model: str = "") -> Answer:
    """{bytes, lengths}, both base64: what each token id adds to a text."""
    return current_port().issue({"op": "vocabulary", "model": model})


@checked
def tokenize(text: str, *, starts_context: bool = False, must_fit: bool = False, model: str = "") -> Answer:
    """Text to {tokens}; control tokens written in the text stay plain text."""
    return current_port().issue(
        {"op": "tokenize", "text": text, "starts_context": starts_context, "must_fit": must_fit, "model": model}
    )


@checked
def detokenize(tokens: Sequence[int], *, each: bool = False, model: str = "") -> Answer:
    """Token ids to {text}; with `each` also {pieces}: each by itself, as {token, text, bytes}."""
    return current_port().issue({"op": "detokenize", "tokens": tokens, "each": each, "model": model})


@checked
def render_chat(
    messages: Sequence[Payload],
    *,
    num_done: int,
    is_open: bool,
    add_generation_prompt: bool,
    must_fit: bool = False,
    tools: Sequence[Payload] = (),
    options: Payload | None = None,
    model: str = "",
    continue_final: bool = False,
) -> Answer:
    """Chat messages to {tokens} by the model's template."""
    return current_port().issue(
        {
            "op": "render_chat",
            "messages": messages,
            "num_done": num_done,
            "is_open": is_open,
            "add_generation_prompt": add_generation_prompt,
            "continue_final": continue_final,
            "must_fit": must_fit,
            "model": model,
            "tools": list(tools),
            "options": options or {},
        }
    )


def _base64(data: bytes) -> str:
    return b64encode(data).decode()
