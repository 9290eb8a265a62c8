"""Reads streams of chat completions as a process of its own, and says what came and when. Never starts a server.

Run by suites as `python -m loopwright.bench.stream_client PORT STREAMS TIMED [BODY]`; writes one line of JSON. It reads
bytes and counts, so that it takes as little of the machine as a client can.
"""

import asyncio
import json
import re
import sys
import time

BODY = b'{"model":"talk","messages":[{"role":"user","content":"x"}],"stream":true}'
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"

CHUNK = b'"delta":{"content":"'
TOLD_NS = re.compile(rb"@(\d+)")
"""When a text was written, by this machine's monotonic clock."""


def request_of(body: bytes) -> bytes:
    """A whole request."""
    return HEAD + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


REQUEST = request_of(BODY)


async def read_stream(port: int, delays_ms: list[float] | None, request: bytes = REQUEST) -> int:
    """How many chunks with text a stream had."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    num_chunks, rest = 0, b""
    while data := await reader.read(1 << 16):
        data = rest + data
        whole, _, rest = data.rpartition(b"\n\n")
        num_chunks += whole.count(CHUNK)
        if delays_ms is not None:
            now_ns = time.monotonic_ns()
            delays_ms += [(now_ns - int(told)) / 1e6 for told in TOLD_NS.findall(whole)]
    writer.close()
    return num_chunks


async def read_streams(port: int, num_streams: int, is_timed: bool, body: bytes = BODY) -> dict[str, object]:
    """All at once: the number of chunks, the seconds that they took, and how long each was under way."""
    delays_ms: list[float] | None = [] if is_timed else None
    request = request_of(body)
    start_s = time.perf_counter()
    counts = await asyncio.gather(*(read_stream(port, delays_ms, request) for _ in range(num_streams)))
    return {"num_chunks": sum(counts), "seconds": time.perf_counter() - start_s, "delays_ms": delays_ms or []}


if __name__ == "__main__":
    port, num_streams, is_timed = (int(word) for word in sys.argv[1:4])
    body = sys.argv[4].encode() if len(sys.argv) > 4 else BODY
    print(json.dumps(asyncio.run(read_streams(port, num_streams, bool(is_timed), body))))
