"""A peer of a link that says what it wants: frames that are none, pieces of them, nothing."""

import socket

import msgspec

from loopwright.transport.link import HEADER_BYTES


class RawPeer:
    """A plain socket, connected to a link that listens."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(address)
        self.socket.settimeout(30)

    def send_frame(self, body: bytes) -> None:
        """With its header."""
        self.socket.sendall(with_header(body))

    def read_messages(self, num_messages: int) -> list[bytes]:
        """The next so many, in however many frames, which must end there."""
        messages: list[bytes] = []
        while len(messages) < num_messages:
            size = int.from_bytes(self._read(HEADER_BYTES), "little")
            messages += msgspec.msgpack.decode(self._read(size), type=list[bytes])
        return messages

    def is_cut_off(self) -> bool:
        """Waits for the end of the stream, or whatever else comes first."""
        try:
            return not self.socket.recv(1)
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()

    def _read(self, num_bytes: int) -> bytes:
        found = b""
        while len(found) < num_bytes:
            piece = self.socket.recv(num_bytes - len(found))
            assert piece, "the stream has ended"
            found += piece
        return found


def frame(*messages: bytes) -> bytes:
    """As a link sends them."""
    return with_header(msgspec.msgpack.encode(list(messages)))


def with_header(body: bytes) -> bytes:
    return len(body).to_bytes(HEADER_BYTES, "little") + body
