"""Other programs that can be measured beside ours, each in a process of its own. Never imports one here: a peer is an
optional extra. Called by `command`.

A peer's module is run as `python -m MODULE WORKLOAD`, with the workload as JSON, and writes a JSON list of values, each
`{"case": …, "metric": …, "value": …}`, as the last line of its standard output.
"""

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

import msgspec

from loopwright.bench.rows import PeerValue
from loopwright.core.errors import NotFound, Unavailable


@dataclass(frozen=True, slots=True)
class Peer:
    """Another program, and what it can be compared in."""

    name: str
    module: str  # of ours, that drives it
    import_name: str  # of its package, to see whether it is installed
    extra: str  # of ours, that installs it
    suite_names: tuple[str, ...]


PEERS = {
    peer.name: peer
    for peer in (
        Peer("pie-server", "loopwright.bench.peers.pie_server", "pie", "peer-pie-server", ("launch",)),
        Peer("llama-cpp", "loopwright.bench.peers.llamacpp", "llama_cpp", "peer-llama-cpp", ("decode",)),
        Peer("transformers", "loopwright.bench.peers.transformers", "transformers", "peer-transformers", ("decode",)),
        Peer("onednn", "loopwright.bench.peers.onednn", "transformers", "peer-transformers", ("decode",)),
    )
}


def find(name: str) -> Peer:
    """The peer of that name. Raises NotFound."""
    if name not in PEERS:
        raise NotFound(f"no peer {name!r}", hint=f"the peers are {', '.join(PEERS)}", field="peer")
    return PEERS[name]


def require(peer: Peer) -> None:
    """Raises Unavailable when the peer's package is not installed in this environment."""
    if find_spec(peer.import_name) is None:
        raise Unavailable(
            f"the peer {peer.name} is not installed", hint=f"pip install 'loopwright[{peer.extra}]'", field="peer"
        )


async def measure(peer: Peer, suite_name: str, workload: Mapping[str, object]) -> list[PeerValue]:
    """What the peer measures for this workload. Raises Unavailable when it fails, with the last line that it wrote."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        peer.module,
        msgspec.json.encode(workload).decode(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:  # we were cancelled: leave no process behind
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise Unavailable(f"the peer {peer.name} failed at {suite_name}: {_last_line(errors)}", field="peer")
    try:
        return msgspec.json.decode(_last_line(output), type=list[PeerValue])
    except msgspec.MsgspecError as error:
        raise Unavailable(f"the peer {peer.name} answered {_last_line(output)!r}: {error}", field="peer") from error


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "(nothing)"
