"""Streams of completions, read by a process of its own: when the first and the last text of each came. Never a server.

Run as `python http_client.py PORT STREAMS TOKENS WORDS MODEL`; it says "ready" once all are connected, begins when a
line comes, and writes one line of JSON. It looks at bytes alone, so that it takes as little of the machine as it can.
"""

import asyncio
import json
import socket
import sys
import time

TEXT = b'"text":"'  # in each chunk with text of /v1/completions


class Reader(asyncio.Protocol):
    """One stream."""

    def __init__(self, request: bytes) -> None:
        self.began_s = 0.0
        self.times_s: list[float] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.head = b""
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def begin(self) -> None:
        self.began_s = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.head = self.head or data[:200]
        if TEXT in data:
            self.times_s.append(time.perf_counter())

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def request_of(num_tokens: int, num_words: int, number: int, model: str) -> bytes:
    """A whole request; its prompt is like no other's."""
    prompt = "".join(f" {(number * 7919 + place * 104729) % 100000}" for place in range(num_words))
    body = json.dumps({"model": model, "prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True,
                       "temperature": 0, "stream": True}).encode()  # fmt: skip
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def main(port: int, num_streams: int, num_tokens: int, num_words: int, model: str) -> None:
    loop = asyncio.get_running_loop()
    readers = []
    for number in range(num_streams):
        request = request_of(num_tokens, num_words, number + hash((port, time.time_ns())) % 100000, model)
        _, reader = await loop.create_connection(lambda request=request: Reader(request), "127.0.0.1", port)
        readers.append(reader)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.readline)
    for reader in readers:
        reader.begin()
    await asyncio.gather(*(reader.ended for reader in readers))
    found = [{"began_s": one.began_s, "times_s": one.times_s} for one in readers if one.times_s]
    failed = [one.head.decode(errors="replace") for one in readers if not one.times_s]
    sys.stdout.write(json.dumps({"streams": found, "failed": failed}) + "\n")


if __name__ == "__main__":
    words = sys.argv[1:]
    asyncio.run(main(int(words[0]), int(words[1]), int(words[2]), int(words[3]), words[4]))
