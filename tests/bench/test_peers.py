"""A peer's process: what it answers, and how it fails."""

import sys
from pathlib import Path

import pytest

from loopwright.bench import peers
from loopwright.bench.rows import PeerValue
from loopwright.core.errors import Unavailable
from loopwright.engine.byte_model import byte_model
from loopwright.engine.model_files import write_hf_folder


@pytest.fixture
def peer_module(tmp_path: Path, monkeypatch):
    """Writes a module that stands for a peer, and returns the peer."""

    def write(source: str) -> peers.Peer:
        (tmp_path / "stand_in_peer.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return peers.Peer("stand-in", "stand_in_peer", "json", "peer-stand-in", ("launch",))

    return write


async def test_a_peer_gets_the_workload_and_answers_with_its_last_line(peer_module):
    peer = peer_module(
        "import json, sys\n"
        "print('loading')\n"
        "num = json.loads(sys.argv[1])['num_burst']\n"
        "print(json.dumps([{'case': f'case=burst/n={num}', 'metric': 'launches_per_s', 'value': 2.5}]))\n"
    )
    values = await peers.measure(peer, "launch", {"num_burst": 7})
    assert values == [PeerValue("case=burst/n=7", "launches_per_s", 2.5)]


async def test_a_peer_that_fails_is_one_line_with_its_reason(peer_module):
    peer = peer_module("import sys\nprint('noise', file=sys.stderr)\nsys.exit('no Vulkan device')\n")
    with pytest.raises(Unavailable, match="the peer stand-in failed at launch: no Vulkan device"):
        await peers.measure(peer, "launch", {})


@pytest.mark.parametrize("source", ["", "print('done')", "print('[{\"case\": 1}]')"])
async def test_a_peer_that_answers_something_else_is_one_line_that_shows_it(peer_module, source):
    with pytest.raises(Unavailable, match="the peer stand-in answered"):
        await peers.measure(peer_module(source), "launch", {})


def test_every_peers_module_and_extra_exist():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    for peer in peers.PEERS.values():
        assert Path(peers.__file__).with_name(peer.module.rpartition(".")[2] + ".py").is_file()
        assert f"{peer.extra} = [" in project


@pytest.mark.parametrize("name", ["transformers", "onednn"])
async def test_what_computes_with_torch_reads_a_folder_and_times_its_prompts(name, tmp_path: Path):
    write_hf_folder(byte_model(), tmp_path)
    workload = {"model_path": str(tmp_path), "num_threads": 1, "num_rounds": 2, "long_prompts": [[7] * 20, [9] * 50]}
    values = await peers.measure(peers.find(name), "decode", workload)
    assert [(one.case, one.metric) for one in values] == [("prompt=20", "tokens_per_s"), ("prompt=50", "tokens_per_s")]
    assert all(one.value > 0 for one in values)


def test_an_installed_package_is_found():
    peers.require(peers.Peer("this", sys.__name__, "json", "", ()))
