"""The routes about a model's text: its tokens, the text of tokens, the tokens of a chat. Each is a run like any other.

Never tokenizes: the built-in programs do. Used by app.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from loopwright.core.errors import BadRequest, LoopwrightError, Unavailable
from loopwright.server.body import off_loop, read_body
from loopwright.server.chat_request import ChatBody, MessageBody, chat_spec, prompt_arguments, read_chat
from loopwright.server.errors import json_response
from loopwright.server.generating import Generating
from loopwright.server.generation import TokenId
from loopwright.server.openapi import takes
from loopwright.server.prompt_limits import check_number
from loopwright.server.tool_request import ToolBody

MAX_TOKENIZED_CHARS = 1 << 20


class TokenizeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A text or a chat. `add_special_tokens` begins a text as a context begins."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[MessageBody], Meta(min_length=1)] | None = None
    tools: list[ToolBody] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class Tokenized(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: tuple[str, ...] | None


class DetokenizeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    tokens: list[TokenId]
    model: str | None = None


class Detokenized(msgspec.Struct, frozen=True):
    prompt: str


class TokenizerInfo(msgspec.Struct, frozen=True):
    """What a harness asks of a tokenizer before it uses it. There is no template: the server renders chats itself."""

    tokenizer_class: str
    model_max_length: int
    vocab_size: int
    bos_token: str | None
    eos_token: str | None
    pad_token: None = None
    chat_template: None = None


class Rendered(msgspec.Struct, frozen=True):
    """The prompt of a chat completion, and what writes it."""

    model: str
    token_ids: tuple[int, ...]
    text: str
    system_fingerprint: str


class TextRoutes:
    """What a client asks who does its own counting."""

    def __init__(self, generating: Generating) -> None:
        self._generating = generating

    @takes(TokenizeBody, answer=Tokenized)
    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize: the tokens of a text or of a chat."""
        body = await read_body(request, TokenizeBody)
        if (body.prompt is None) == (body.messages is None):
            raise BadRequest("prompt: send either prompt or messages", field="prompt")
        model = self._generating.model(body.model)
        arguments: dict[str, Any] = {"with_strings": body.return_token_strs is True}
        if body.messages is not None:
            if body.add_special_tokens is not None:
                raise BadRequest("add_special_tokens: a chat template says it itself", field="add_special_tokens")
            chat = ChatBody(model=model.name, messages=body.messages, tools=body.tools)
            arguments |= await off_loop(
                request, lambda: prompt_arguments(chat_spec(read_chat(chat), model, may_exceed=True))
            )
            arguments["add_generation_prompt"] = body.add_generation_prompt is not False
        else:
            if body.add_generation_prompt is not None:
                raise BadRequest("add_generation_prompt: only with messages", field="add_generation_prompt")
            check_number("prompt", len(body.prompt or ""), MAX_TOKENIZED_CHARS, "characters")
            arguments |= {"text": body.prompt, "starts_context": body.add_special_tokens is not False}
        found = await self._generating.result(request, "tokenize", model, arguments)
        tokens, strings = found["tokens"], found["strings"]
        return json_response(Tokenized(len(tokens), model.max_context, tuple(tokens), strings and tuple(strings)))

    @takes(DetokenizeBody, answer=Detokenized)
    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize: the text of tokens."""
        body = await read_body(request, DetokenizeBody)
        found = await self._generating.result(
            request, "detokenize", self._generating.model(body.model), {"tokens": body.tokens}
        )
        return json_response(Detokenized(found["text"]))

    @takes(query={"model": {"type": "string"}}, answer=TokenizerInfo)
    async def tokenizer_info(self, request: Request) -> Response:
        """GET /tokenizer_info: the tokens that begin a context and end a turn, and how large the vocabulary is."""
        model = self._generating.model(request.query_params.get("model"))
        named = {"bos_token": model.bos_id, "eos_token": model.eos_ids[0] if model.eos_ids else None}
        ids = [one for one in named.values() if one is not None]
        found = await self._generating.result(request, "detokenize", model, {"tokens": ids, "each": True})
        texts = iter(found["strings"])
        told = {name: None if one is None else next(texts) for name, one in named.items()}
        return json_response(TokenizerInfo("Loopwright", model.max_context, model.vocab_size, **told))

    @takes(ChatBody, answer=Rendered)
    async def render(self, request: Request) -> Response:
        """POST /v1/chat/completions/render: the tokens that a chat completion would run as its prompt."""
        body = await read_body(request, ChatBody)
        model = self._generating.model(body.model)
        arguments = await off_loop(request, lambda: prompt_arguments(chat_spec(read_chat(body), model)))
        arguments |= {"with_text": True, "num_kept": body.truncate_prompt_tokens}
        found = await self._generating.result(request, "tokenize", model, arguments)
        return json_response(Rendered(model.name, tuple(found["tokens"]), found["text"], model.fingerprint))

    @takes(answer={"type": "object", "required": ["status"]})
    async def health(self, request: Request) -> Response:
        """GET /health: asks the control layer, so that a server whose model process died does not pass for well."""
        await self._generating.runs.stats()
        return json_response({"status": "ok"})

    @takes(answer={"type": "object", "required": ["status", "models"]})
    async def ready(self, request: Request) -> Response:
        """GET /ready: whether a request would be served now. Runs one for each model, of the smallest kind."""
        names = [model.name for model in self._generating.runs.models()]
        try:
            for name in names:
                await self._generating.result(request, "tokenize", self._generating.model(name), {"text": ""})
        except LoopwrightError as error:
            raise Unavailable(f"the server is not ready: {error.message}", hint=error.hint) from None
        return json_response({"status": "ready", "models": names})
