"""The client of the load's measurements, as a process of its own: which text came when. Imports next to nothing."""

import asyncio
import json
import re
import sys
import time
from typing import Any

CONTENT = re.compile(rb'"content":"([a-zA-Z]+)"')


def request(prompt: str, num_tokens: int, **more: Any) -> bytes:
    body = {
        "model": "byte",
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "max_tokens": num_tokens,
        "temperature": 0,
        **more,
    }
    payload = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    return head.encode() + payload


async def read_timed(port: int, num_streams: int, num_tokens: int) -> list[tuple[int, str]]:
    """The other process: when which text came, after the first half, in which streams still begin."""

    async def one() -> list[tuple[int, str]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("x", num_tokens))
        found: list[tuple[int, str]] = []
        while data := await reader.read(1 << 16):
            now_ns = time.monotonic_ns()
            found += [(now_ns, text.decode()) for text in CONTENT.findall(data)]
        writer.close()
        return found[len(found) // 2 :]

    return [entry for found in await asyncio.gather(*(one() for _ in range(num_streams))) for entry in found]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(read_timed(*map(int, sys.argv[1:4])))))
