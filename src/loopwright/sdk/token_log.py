"""What a context holds as tokens: what was appended, rendered by the chat template, and written by the model.

Never knows of KV or views. Owned by one Context.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from loopwright.sdk.errors import BadRequest
from loopwright.sdk.resources import detokenize, render_chat, tokenize
from loopwright.sdk.spans import Span, Spans, common, moved_up, numbers, size_of, spans_of
from loopwright.sdk.transcript import Message, Transcript

Part = str | list[int] | Message  # what was appended and is not tokens yet


class TokenLog:
    """Tokens, and the parts that wait to become some. Appending costs nothing; `write_out` has the host do the work."""

    def __init__(self, model: str = "", template: dict[str, Any] | None = None) -> None:
        self._model = model
        self.tokens: list[int] = []
        self.transcript = Transcript(options=dict(template or {}))
        self.num_written = 0  # how many of the last tokens the model wrote
        self._parts: deque[Part] = deque()
        self.marks: list[tuple[int, Transcript]] = [
            (0, self.transcript.copy())
        ]  # the transcript at some numbers of tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def append(self, part: Part) -> None:
        self._parts.append(part)

    def put_back(self, text: str) -> None:
        """Text that goes before all that waits."""
        self._parts.appendleft(text)

    async def write_out(self, *, opens_turn: bool) -> None:
        """Turns what was appended into tokens and, in a chat, opens the assistant's turn if asked."""
        messages: list[Message] = []
        while self._parts:
            part = self._parts[0]
            if isinstance(part, dict):
                messages.append(part)
                self._parts.popleft()
                continue
            await self._render(messages, opens_turn=True)
            messages = []
            await self._write(part)
            self._parts.popleft()
        if messages or opens_turn:
            await self._render(messages, opens_turn=opens_turn)

    def extend_written(self, tokens: Sequence[int]) -> None:
        """Adds what the model wrote."""
        self.tokens += tokens
        self.num_written += len(tokens)

    async def transcribe(self, tokens: Sequence[int]) -> None:
        """Of a chat whose assistant has the word, notes what tokens that are added say."""
        if self.transcript.is_open:
            self.transcript.write((await detokenize(tokens, model=self._model))["text"])

    async def truncate(self, num_tokens: int) -> None:
        """Keeps the first tokens. Of a message cut in two, what is left counts as written behind those before it."""
        while self.marks[-1][0] > num_tokens:
            self.marks.pop()
        marked, transcript = self.marks[-1]
        transcript = transcript.copy()
        if transcript.is_open and marked < num_tokens:
            transcript.write((await detokenize(self.tokens[marked:num_tokens], model=self._model))["text"])
        self.transcript = transcript
        self.num_written = max(0, self.num_written - (len(self.tokens) - num_tokens))
        del self.tokens[num_tokens:]

    def forget(self, gone: Spans) -> None:
        """Takes tokens out. The transcript keeps what they said: it only serves to render what follows."""
        left = [(0, gone[0][0]), *((end, start) for (_, end), (start, _) in pairwise(gone))]
        first_written = len(self.tokens) - self.num_written
        self.num_written -= size_of(common(gone, ((first_written, len(self.tokens)),)))
        kept = [*left, (gone[-1][1], len(self.tokens))]
        self.tokens = [self.tokens[place] for place in numbers(kept)]
        self.marks = [(moved_up(marked, gone), transcript) for marked, transcript in self.marks]

    async def ids_of(self, text: str) -> list[int]:
        """The tokens of a text that would follow."""
        ids: list[int] = (await tokenize(text, model=self._model))["tokens"]
        return ids

    def checked(self, spans: Iterable[Span | range]) -> Spans:
        """Spans of its tokens. Raises BadRequest for what is not within them."""
        pairs = [(one.start, one.stop) if isinstance(one, range) else one for one in spans]
        for start, end in pairs:
            if not 0 <= start <= end <= len(self.tokens):
                raise BadRequest(
                    f"span: {start} … {end} is not within the context's {len(self.tokens)} tokens", field="span"
                )
        return spans_of(pairs)

    def copy(self) -> "TokenLog":
        """Of what is tokens already."""
        other = TokenLog(self._model)
        other.tokens, other.transcript = list(self.tokens), self.transcript.copy()
        other.num_written, other.marks = self.num_written, list(self.marks)
        return other

    async def _render(self, messages: list[Message], *, opens_turn: bool) -> None:
        opens_turn = opens_turn and bool(messages or self.transcript.messages)
        if not messages and (not opens_turn or self.transcript.is_open):
            return
        payload = await render_chat(**self.transcript.delta(messages, opens_turn), must_fit=True, model=self._model)
        self._extend_given(payload["tokens"])
        self.transcript.extend(messages, opens_turn)
        self.marks.append((len(self.tokens), self.transcript.copy()))

    async def _write(self, part: str | list[int]) -> None:
        if isinstance(part, str):
            ids = await self._ids_at_end(part) if part else []
            self.transcript.write(part)
        else:
            ids = part
            if self.transcript.is_open:
                await self.transcribe(part)
        self._extend_given(ids)

    async def _ids_at_end(self, text: str) -> list[int]:
        found = await tokenize(text, starts_context=not self.tokens, must_fit=True, model=self._model)
        ids: list[int] = found["tokens"]
        return ids

    def _extend_given(self, tokens: Sequence[int]) -> None:
        if tokens:
            self.tokens += tokens
            self.num_written = 0
