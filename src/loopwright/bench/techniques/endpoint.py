"""One client's connections to a server: the OpenAI routes, and the route that runs a program. Never measures.

Connections are kept alive and opened before anything is timed. The HTTP is httpcore's, which httpx and the openai
package stand on, without what these put on top. Used by the driver.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import httpcore
import msgspec

from loopwright.core.errors import Unavailable

Message: TypeAlias = dict[str, str]

MAX_CONNECTIONS = 16
KEEPALIVE_S = 600.0
TIMEOUTS: Mapping[str, float] = {"connect": 60.0, "read": 600.0, "write": 60.0, "pool": 60.0}


def system_says(text: str) -> Message:
    return {"role": "system", "content": text}


def user_says(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant_says(text: str) -> Message:
    return {"role": "assistant", "content": text}


class Endpoint:
    """What one client of the server uses. A context manager, whose end closes the connections."""

    def __init__(self, url: str, model: str) -> None:
        self._url = url
        self._model = model
        self.round_trip_s = 0.0  # added to each request, as if the server were so far away
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS, keepalive_expiry=KEEPALIVE_S
        )

    async def __aenter__(self) -> "Endpoint":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.aclose()

    async def chat(self, messages: Sequence[Message], max_tokens: int, temperature: float = 0.0) -> str:
        """The assistant's next turn, of so many tokens."""
        (text,) = await self.chats(messages, max_tokens, 1, temperature)
        return text

    async def chats(self, messages: Sequence[Message], max_tokens: int, n: int, temperature: float) -> list[str]:
        """Several turns that might come next, by one request."""
        body = {"messages": messages, "max_tokens": max_tokens, "n": n, "temperature": temperature, "ignore_eos": True}
        answer = await self.post("/v1/chat/completions", {"model": self._model, **body})
        return [choice["message"]["content"] for choice in answer["choices"]]

    async def chat_by_grammar(self, messages: Sequence[Message], max_tokens: int, grammar: str) -> str:
        """A turn that fits a grammar in Lark's form."""
        body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "guided_grammar": grammar}
        answer = await self.post("/v1/chat/completions", {"model": self._model, **body})
        return str(answer["choices"][0]["message"]["content"])

    async def complete(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        """What follows each prompt, by one request."""
        body = {"prompt": prompts, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        answer = await self.post("/v1/completions", {"model": self._model, **body})
        return [choice["text"] for choice in answer["choices"]]

    async def next_tokens(self, prompts: Sequence[str], num_top: int) -> list[dict[str, float]]:
        """The log-probabilities of the most probable next tokens after each prompt, by one request."""
        body = {"prompt": prompts, "max_tokens": 1, "logprobs": num_top, "temperature": 0, "ignore_eos": True}
        answer = await self.post("/v1/completions", {"model": self._model, **body})
        return [choice["logprobs"]["top_logprobs"][0] for choice in answer["choices"]]

    async def run(self, program: str, arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401 (JSON)
        """What a run of a deployed program returns."""
        answer = await self.post(f"/v1/programs/{program}/runs", {"arguments": arguments, "stream": False})
        return answer["result"]

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401 (JSON)
        """The answer's body. Raises Unavailable when the status is not 200.

        A kept connection may be closed by the server just when it is used again: then another one is taken, once."""
        if self.round_trip_s:
            await asyncio.sleep(self.round_trip_s)
        content = msgspec.json.encode(body)
        try:
            response = await self._post(path, content)
        except (httpcore.ReadError, httpcore.WriteError, httpcore.RemoteProtocolError):
            response = await self._post(path, content)
        if response.status != 200:
            raise Unavailable(f"{path} answered {response.status}: {response.content[:500].decode(errors='replace')}")
        return msgspec.json.decode(response.content)

    async def _post(self, path: str, content: bytes) -> httpcore.Response:
        return await self._pool.request(
            "POST",
            self._url + path,
            headers={"content-type": "application/json"},
            content=content,
            extensions={"timeout": TIMEOUTS},
        )

    async def open(self) -> None:
        """Opens a connection, so that the first request need not."""
        await self._pool.request("GET", self._url + "/health", extensions={"timeout": TIMEOUTS})
