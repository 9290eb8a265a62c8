"""`loopwright serve --model A --model B`, in one process and in several: each request goes to its model."""

from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from command_rig import run_command, serving, write_byte_gguf
from loopwright.core.calls import Sampling
from system_rig import byte_oracle

pytestmark = pytest.mark.wasm

IDS = list(b"one and")  # this file's tokenizer begins with nothing
BOTH = """
# /// program
# permissions = { models = ["beta"] }
# ///
from loopwright import Context, models

async def main():
    texts = []
    for name in ("", "alpha", "beta"):
        ctx = Context(model=name)
        ctx.append("one and")
        texts.append((await ctx.generate(max_tokens=6, ignore_eos=True)).tokens)
    return [texts, [one.name for one in await models()]]
"""


@pytest.mark.parametrize(("processes", "workers"), [("1", set()), ("2", {"model", "model-1", "runtime-0"})])
def test_chat_and_programs_reach_each_model(tmp_path: Path, processes: str, workers: set[str]) -> None:
    alpha = write_byte_gguf(tmp_path / "alpha.gguf")
    beta = write_byte_gguf(tmp_path / "beta.gguf", seed=1)
    with serving(tmp_path, "--model", alpha, "--model", beta, "--processes", processes) as server:
        assert set(server.workers()) == workers
        assert "alpha, beta at http" in server.running.err
        expected = [list(byte_oracle(seed).generate(IDS, Sampling(), 6, ()).tokens) for seed in (0, 1)]
        with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
            assert [one.id for one in client.models.list().data] == ["alpha", "beta"]
            message = {"role": "user", "content": "hi"}
            texts = [
                client.chat.completions.create(model=name, messages=[message], max_tokens=8, temperature=0)  # type: ignore[list-item]
                .choices[0]
                .message.content
                for name in ("alpha", "beta", "alpha")
            ]
        assert texts[0] == texts[2] != texts[1]
        run = httpx.post(f"{server.url}/v1/runs", json={"source": BOTH, "stream": False}, timeout=120).json()
        assert run["result"] == [[expected[0], expected[0], expected[1]], ["alpha", "beta"]]
        body = {"source": BOTH, "stream": False, "model": "beta"}  # then alpha is another one, which is not permitted
        assert httpx.post(f"{server.url}/v1/runs", json=body, timeout=120).json()["error"]["code"] == "denied"


def test_one_model_twice_is_refused(tmp_path: Path) -> None:
    alpha = write_byte_gguf(tmp_path / "alpha.gguf")
    done = run_command("serve", "--port", "0", "--model", alpha, "--model", alpha, "--processes", "1")
    assert "one name stands for two models" in done.error_line()
