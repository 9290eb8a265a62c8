"""The two forms of an OpenAI answer: a chat completion's and a completion's. Pure; never knows where text comes from.

Used by `answers`, which has what both share. Log-probabilities say of which kind they are, beside OpenAI's fields.
"""

import codecs
from collections.abc import Sequence
from typing import Any, Protocol

from loopwright.core.events import TokenLogprob
from loopwright.server.generation import Generation
from loopwright.server.outcomes import Choice, Part, PromptShown
from loopwright.server.pieces import CallArguments, CallStart

Json = dict[str, Any]

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Form(Protocol):
    """How one request's answer is written. Pieces of one choice come in order."""

    id_prefix: str
    whole: str  # the type of a whole answer
    chunk: str  # … and of a chunk

    def choice(self, index: int, part: Part, end: Choice, prompt: PromptShown | None) -> Json:
        """A choice of a whole answer."""
        ...

    def extras(self, prompt: PromptShown | None) -> Json:
        """What a whole answer, or the first chunk, says beside its choices."""
        ...

    def first_delta(self, index: int) -> Json | None:
        """What comes before all else of a choice."""
        ...

    def prompt_delta(self, index: int, prompt: PromptShown) -> Json | None:
        """What is told of a choice's prompt."""
        ...

    def delta(self, index: int, part: Part) -> Json: ...

    def end_delta(self, index: int, end: Choice) -> Json: ...


class ChatForm:
    """Messages."""

    id_prefix, whole, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, asked: Generation, *, is_legacy: bool = False) -> None:
        self._asked = asked
        self._is_legacy = is_legacy  # its tools are functions, and a call is a function_call

    def choice(self, index: int, part: Part, end: Choice, prompt: PromptShown | None) -> Json:
        calls = [_whole_call(start, arguments) for _, start, arguments in _calls(part)]
        content = part.text or (None if calls else "")
        message: Json = {"role": "assistant", "content": content, "refusal": None, **_reasoning(part)}
        if calls:
            message |= {"function_call": calls[0]["function"]} if self._is_legacy else {"tool_calls": calls}
        return {"index": index, "message": message, **self._behind(part), **self._end(end)}

    def extras(self, prompt: PromptShown | None) -> Json:
        return _of_prompt(self._asked, prompt)

    def first_delta(self, index: int) -> Json | None:
        return self._delta(index, {"role": "assistant", "content": ""})

    def prompt_delta(self, index: int, prompt: PromptShown) -> Json | None:
        return None

    def delta(self, index: int, part: Part) -> Json:
        told = _reasoning(part)
        if text := part.text:
            told["content"] = text
        if calls := _calls(part):
            deltas = [_call_delta(*call) for call in calls]
            told |= {"function_call": deltas[0]["function"]} if self._is_legacy else {"tool_calls": deltas}
        return {**self._delta(index, told), **self._behind(part)}

    def end_delta(self, index: int, end: Choice) -> Json:
        return {**self._delta(index, {}), **self._end(end)}

    def _end(self, end: Choice) -> Json:
        told = _end(end)
        is_call = self._is_legacy and told["finish_reason"] == "tool_calls"
        return {**told, "finish_reason": "function_call"} if is_call else told

    def _delta(self, index: int, delta: Json) -> Json:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _behind(self, part: Part) -> Json:
        found: Json = {"logprobs": None}
        if (num_top := self._asked.num_top) is not None:
            content = [
                {**_entry(one), "top_logprobs": [_entry(other) for other in one.top[:num_top]]} for one in part.logprobs
            ]
            found["logprobs"] = {"content": content, "refusal": None, "logprob_kind": self._asked.logprob_kind}
        return {**found, "token_ids": part.tokens} if self._asked.shows_prompt_ids else found


class CompletionForm:
    """Plain text. With `echo` the prompt comes first, as if it had been generated."""

    id_prefix, whole, chunk = "cmpl", "text_completion", "text_completion"

    def __init__(self, asked: Generation) -> None:
        self._asked = asked
        self._ends: dict[int, TextEnd] = {}

    def choice(self, index: int, part: Part, end: Choice, prompt: PromptShown | None) -> Json:
        text, logprobs = part.text, part.logprobs
        if self._asked.echoes and prompt is not None:
            text, logprobs = prompt.text + text, [*(prompt.logprobs or ()), *logprobs]
        return {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(index, logprobs),
            **_end(end),
            **self._ids(part),
            **_of_prompt(self._asked, prompt),
        }

    def extras(self, prompt: PromptShown | None) -> Json:
        return {}

    def first_delta(self, index: int) -> Json | None:
        return None

    def prompt_delta(self, index: int, prompt: PromptShown) -> Json | None:
        echoed = self._asked.echoes
        told = self._delta(index, prompt.text if echoed else "", (prompt.logprobs or ()) if echoed else ())
        return {**told, **_of_prompt(self._asked, prompt)}

    def delta(self, index: int, part: Part) -> Json:
        return {**self._delta(index, part.text, part.logprobs), **self._ids(part)}

    def end_delta(self, index: int, end: Choice) -> Json:
        return {**self._delta(index, "", None), **_end(end)}

    def _delta(self, index: int, text: str, logprobs: Sequence[TokenLogprob] | None) -> Json:
        listed = None if logprobs is None else self._logprobs(index, logprobs)
        return {"index": index, "text": text, "logprobs": listed, "finish_reason": None}

    def _logprobs(self, index: int, found: Sequence[TokenLogprob]) -> Json | None:
        num_top = self._asked.num_top
        if num_top is None:
            return None
        end = self._ends.setdefault(index, TextEnd())
        return {
            "tokens": [one.text for one in found],
            "token_logprobs": [one.logprob for one in found],
            "top_logprobs": [_by_text(one, num_top) for one in found],
            "text_offset": [end.pass_over(one) for one in found],
            "logprob_kind": self._asked.logprob_kind,
        }

    def _ids(self, part: Part) -> Json:
        return {"token_ids": part.tokens} if self._asked.shows_prompt_ids else {}


class TextEnd:
    """How long the text of some tokens is, in characters: those that are complete."""

    def __init__(self) -> None:
        self._decoder = _new_decoder(errors="replace")
        self._num_chars = 0

    def pass_over(self, one: TokenLogprob) -> int:
        """Takes the next token. Where it begins."""
        start = self._num_chars
        self._num_chars += len(self._decoder.decode(bytes(one.bytes or ())))
        return start


def _reasoning(part: Part) -> Json:
    """What the model thought, apart from what it answers."""
    return {"reasoning_content": thoughts} if (thoughts := part.thoughts) else {}


def _calls(part: Part) -> list[tuple[int, CallStart | None, str]]:
    """Of each call that a part tells of: its number, how it starts if it does so here, and a piece of its arguments."""
    starts = {piece.number: piece for piece in part.pieces if isinstance(piece, CallStart)}
    texts: dict[int, list[str]] = {number: [] for number in starts}
    for piece in part.pieces:
        if isinstance(piece, CallArguments):
            texts.setdefault(piece.number, []).append(piece.text)
    return [(number, starts.get(number), "".join(texts[number])) for number in sorted(texts)]


def _whole_call(start: CallStart | None, arguments: str) -> Json:
    assert start is not None, "a call starts before it goes on"
    return {"id": start.call_id, "type": "function", "function": {"name": start.name, "arguments": arguments}}


def _call_delta(number: int, start: CallStart | None, arguments: str) -> Json:
    """One entry for a call: clients join entries of one number only across chunks."""
    if start is None:
        return {"index": number, "function": {"arguments": arguments}}
    return {"index": number, **_whole_call(start, arguments)}


def _end(end: Choice) -> Json:
    return {"finish_reason": end.finish_reason, "stop_reason": end.stop_reason}


def _entry(one: TokenLogprob) -> Json:
    return {"token": one.text, "logprob": one.logprob, "bytes": one.bytes}


def _by_text(one: TokenLogprob, num_top: int) -> dict[str, float] | None:
    """The most probable tokens of a place and the one that stands there; of two that look alike the more probable."""
    if one.logprob is None:
        return None
    found: dict[str, float] = {}
    for other in (*one.top[:num_top], one):
        assert other.logprob is not None
        found.setdefault(other.text, other.logprob)
    return found


def _of_prompt(asked: Generation, prompt: PromptShown | None) -> Json:
    """A prompt's ids and the log-probabilities of its tokens by id, as far as asked."""
    found: Json = {}
    if prompt is None:
        return found
    if asked.shows_prompt_ids:
        found["prompt_token_ids"] = prompt.tokens
    if (num_top := asked.num_prompt_top) is not None:
        found["prompt_logprobs"] = [_by_id(one, num_top) for one in prompt.logprobs or ()]
    return found


def _by_id(one: TokenLogprob, num_top: int) -> Json | None:
    if one.logprob is None:
        return None
    listed = {other.token: other for other in (*one.top[:num_top], one)}
    return {
        str(token): {"logprob": other.logprob, "rank": other.rank, "decoded_token": other.text}
        for token, other in listed.items()
    }
