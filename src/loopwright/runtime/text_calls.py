"""Answers the calls about text: tokens of a text, text of tokens, tokens of a chat. Never asks the engine.

A service of the host, the same for all runs of a model.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import msgspec

from loopwright.core.errors import BadRequest, ContextTooLong
from loopwright.core.host_calls import Detokenize, Message, RenderChat, Tokenize, Vocabulary
from loopwright.runtime import facts
from loopwright.text.stream import detokenize

MAX_CHARS_ON_LOOP = 8192
"""Text that is tokenized on the event loop's thread: two milliseconds' worth."""

MESSAGE_CHARS = 64
"""What a message takes beside its text to be rendered, as text."""

Payload: TypeAlias = dict[str, Any]


class TextCalls:
    """What takes long is done on a thread: other programs would notice."""

    def __init__(self, model: facts.ModelText) -> None:
        self._model = model

    def tokenize(self, call: Tokenize) -> Payload | Coroutine[Any, Any, Payload]:
        return _soon(len(call.text), lambda: {"tokens": self._fitting(call, self._tokens_of(call))})

    def detokenize(self, call: Detokenize) -> Payload:
        size = self._model.info.vocab_size
        if any(token >= size for token in call.tokens):
            raise BadRequest(f"token id {max(call.tokens)}; the vocabulary has {size}", field="tokens")
        found: Payload = {"text": detokenize(self._model.tokenizer.token_bytes, call.tokens)}
        return {**found, "pieces": [self._piece(token) for token in call.tokens]} if call.each else found

    def render_chat(self, call: RenderChat) -> Payload | Coroutine[Any, Any, Payload]:
        num_chars = sum(MESSAGE_CHARS + len(message.content) for message in call.messages)
        num_chars += sum(len(msgspec.json.encode(one.tool_calls)) for one in call.messages if one.tool_calls)
        num_chars += len(msgspec.json.encode(call.tools)) if call.tools else 0
        return _soon(num_chars, lambda: {"tokens": self._fitting(call, self._tokens_of_chat(call))})

    def vocabulary(self, _: Vocabulary) -> Coroutine[Any, Any, Payload]:
        return asyncio.to_thread(facts.vocabulary, self._model)

    def _piece(self, token: int) -> Payload:
        text, added = self._model.tokenizer.shown(token)
        return {"token": token, "text": text, "bytes": list(added) or None}

    def _fitting(self, call: Tokenize | RenderChat, tokens: list[int]) -> list[int]:
        """The tokens, unless they are too many: then they are passed to nobody, who would only find the same."""
        info = self._model.info
        if call.must_fit and len(tokens) > info.max_context:
            raise ContextTooLong(
                f"tokens: the prompt is too long: it has {len(tokens)} tokens; this model's maximum context length is "
                f"{info.max_context}",
                field="tokens",
            )
        return tokens

    def _tokens_of(self, call: Tokenize) -> list[int]:
        tokenizer = self._model.tokenizer
        ids = tokenizer.encode(call.text, "nothing" if call.starts_context else "text")
        if call.starts_context and tokenizer.add_bos and tokenizer.bos_id is not None:
            return [tokenizer.bos_id, *ids]
        return ids

    def _tokens_of_chat(self, call: RenderChat) -> list[int]:
        if self._model.chat_template is None:
            raise BadRequest(
                f"the model {self._model.info.name!r} has no chat template", hint="use append instead of chat roles"
            )
        messages = [_message(one) for one in call.messages]
        tools = [msgspec.structs.asdict(tool) for tool in call.tools]
        if call.continue_final:
            if call.num_done or call.add_generation_prompt:
                other = "num_done" if call.num_done else "add_generation_prompt"
                raise BadRequest(f"continue_final: does not go together with {other}", field="continue_final")
            return self._model.chat_template.render_open(messages, tools, call.options)
        return self._model.chat_template.render_delta(
            messages, call.num_done, call.is_open, call.add_generation_prompt, tools, call.options
        )


def _message(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        fields["tool_calls"] = [msgspec.structs.asdict(one) for one in message.tool_calls]
    return fields


def _soon(num_chars: int, work: Callable[[], Payload]) -> Payload | Coroutine[Any, Any, Payload]:
    return work() if num_chars <= MAX_CHARS_ON_LOOP else asyncio.to_thread(work)
