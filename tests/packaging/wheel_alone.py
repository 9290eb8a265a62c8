"""A newcomer without a compiler: installs the wheel into a fresh environment, far from the repository, and uses it all.

`make wheel-test` runs it, with the wheel's path. Dependencies and the model come as pip is set up here: minutes, and
gigabytes where torch is the CUDA build.
"""

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

from make_wheel import ROOT

MODEL = "SmolLM2-135M-Instruct"
PROGRAM = """
from loopwright import Context

async def main(name: str) -> str:
    ctx = Context()
    ctx.user(f"Say hello to {name}.")
    turn = await ctx.generate(max_tokens=8)
    return turn.text
"""


def say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


class Machine:
    """An environment with the wheel in it, and no other program on its path."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        say(f"installing {wheel.name} into {folder}")
        venv.create(folder / "venv", with_pip=True)
        self.bin = folder / "venv" / "bin"
        kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or "proxy" in name.lower()}
        self.environment = kept | {"PATH": str(self.bin), "HOME": str(folder)}
        self("pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(wheel))

    def __call__(self, command: str, *words: str) -> str:
        """Runs to its end; what it printed."""
        say("$", command, *words)
        done = subprocess.run(
            [str(self.bin / command), *words], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True
        )
        if done.returncode:
            sys.exit(f"{command} ended with {done.returncode}: {done.stdout}")
        say(done.stdout)
        return done.stdout

    def serve(self) -> "tuple[subprocess.Popen[str], str]":
        """A server, and its address."""
        server = subprocess.Popen(
            [str(self.bin / "loopwright"), "serve", "--port", "0", "--dtype", "bfloat16"],  # refused without kernels
            cwd=self.folder, env=self.environment, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert server.stderr is not None
        for line in server.stderr:
            say(line.rstrip())
            if found := re.search(r" at (http://\S+)/v1 ", line):
                return server, found[1]
        sys.exit(f"the server ended with {server.wait()}")


def ask(url: str, body: dict[str, Any]) -> Any:
    with urlopen(
        Request(url, json.dumps(body).encode(), {"content-type": "application/json"}), timeout=120
    ) as response:
        return json.load(response)


def use(machine: Machine) -> None:
    """Every step asserts what it should have found."""
    found = {one["what"]: one["found"] for one in json.loads(machine("loopwright", "doctor", "--json"))}
    assert found["compiler"] == "none", found
    assert ", from the wheel;" in found["engine"], found
    machine("loopwright", "model", "pull", MODEL)
    assert MODEL in machine("loopwright", "model", "list")
    machine("loopwright", "new", "fresh", "--template", "chat")
    (machine.folder / "hello.py").write_text(PROGRAM)
    machine("loopwright", "check", "hello.py")
    assert machine("loopwright", "run", "hello.py", "--name", "Ada").strip()
    assert machine("loopwright", "demo").strip()
    server, url = machine.serve()
    try:
        machine.environment["LOOPWRIGHT_URL"] = url
        machine("loopwright", "deploy", "hello.py")
        for model in (MODEL, "program:hello"):
            messages = [{"role": "user", "content": "What is the capital of France?"}]
            body = {"model": model, "messages": messages, "max_completion_tokens": 40}
            reply = ask(f"{url}/v1/chat/completions", body)
            say(model, "says", json.dumps(reply["choices"][0]["message"]["content"]))
            assert reply["choices"][0]["message"]["content"], reply
    finally:
        server.terminate()
    assert server.wait(60) == 0


if __name__ == "__main__":
    with TemporaryDirectory(prefix="loopwright-alone-") as name:
        use(Machine(Path(name).resolve(), Path(sys.argv[1]).resolve()))
    say("the wheel alone is enough")
