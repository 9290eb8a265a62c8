"""The demo's search tool: a few dozen facts behind `GET /search?q=…` on loopback. Never reaches outside this process.

Started by `loopwright demo`; an agent's tools are ordinary HTTP servers like this one.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

FACTS = (
    "The Seine flows through Paris, the capital of France.",
    "The Thames flows through London, the capital of the United Kingdom.",
    "The Danube flows through Vienna, the capital of Austria.",
    "Tokyo is the capital of Japan.",
    "Berlin is the capital of Germany and stands on the Spree.",
    "Mount Everest is the highest mountain on Earth, 8,849 metres above the sea.",
    "The Nile is the longest river in Africa.",
    "Jupiter is the largest planet of the Solar System.",
    "Marie Curie discovered radium and polonium.",
    "Water boils at 100 degrees Celsius at sea level.",
    "The Great Barrier Reef lies off the coast of Australia.",
    "Alexander Fleming discovered penicillin in 1928.",
)
_WORD = re.compile(r"[a-z0-9]+")
_COMMON = frozenset(_WORD.findall("the a an of is in on and which what who does do how through flows river capital"))


def search(query: str) -> str:
    """The fact that shares the most words with the query; rare words count more."""
    words = set(_WORD.findall(query.lower()))

    def score(fact: str) -> float:
        shared = words & set(_WORD.findall(fact.lower()))
        return len(shared - _COMMON) + 0.1 * len(shared & _COMMON)

    best = max(FACTS, key=score)
    return best if score(best) >= 0.2 else "Nothing was found."


class _Search(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = " ".join(parse_qs(url.query).get("q", []))
        body = search(query).encode() if url.path == "/search" else b"not found"
        self.send_response(200 if url.path == "/search" else 404)
        self.send_header("content-type", "text/plain; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silent: the program shows its calls itself."""


@contextmanager
def search_tool() -> Iterator[str]:
    """Serves on a free port of loopback; gives the URL to search at."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Search)
    thread = threading.Thread(target=server.serve_forever, name="search-tool", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/search"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
