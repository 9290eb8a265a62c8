"""What one collective of a step takes, as a model of Llama 8B's sizes has them: in a graph of many, one process a rank.

`python collectives.py MEETING RANK NUM_RANKS DEVICE`; the first rank prints a line of JSON. `measured` starts them all.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from loopwright.engine.ranks.collectives import Collectives

ROWS = (1, 32, 128, 256)
HIDDEN, VOCABULARY = 4096, 128256
NUM, ROUNDS = 32, 5  # collectives of a graph, and how often it runs
LIMIT_S = 60.0

Run = Callable[[], object]


def measured(num_ranks: int, device: str) -> dict[str, list[float]]:
    """Microseconds by what is done, for each number of rows in ROWS. Raises CalledProcessError and TimeoutExpired."""
    with tempfile.TemporaryDirectory() as folder:
        words = [[sys.executable, __file__, f"{folder}/meeting", str(rank), str(num_ranks), device]
                 for rank in range(num_ranks)]  # fmt: skip
        others = [subprocess.Popen(one) for one in words[1:]]
        try:
            first = subprocess.run(words[0], stdout=subprocess.PIPE, timeout=LIMIT_S, check=True)
            return json.loads(first.stdout)
        finally:
            for one in others:
                with suppress(subprocess.TimeoutExpired):
                    one.wait(5)
                one.kill()
                one.wait()


def main() -> None:
    meeting, rank, num_ranks, kind = sys.argv[1:]
    device = torch.device(kind, int(rank)) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    ranks = Collectives(Path(meeting), int(rank), int(num_ranks), device, LIMIT_S)
    found: dict[str, list[float]] = {}
    with torch.inference_mode():
        for num_rows in ROWS:
            for name, run in collectives(ranks, num_rows, device).items():
                found.setdefault(name, []).append(1e6 * (graph_s if kind == "cuda" else loop_s)(run))
    if ranks.rank == 0:
        sys.stdout.write(json.dumps(found))
    ranks.abort()


def collectives(ranks: Collectives, num_rows: int, device: torch.device) -> dict[str, Run]:
    """Each is called by all ranks, in this order."""
    hidden = torch.zeros(
        num_rows, HIDDEN, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32, device=device
    )
    logits = torch.zeros(num_rows, VOCABULARY // ranks.num_ranks, device=device)
    choices = torch.zeros(num_rows, 4, dtype=torch.int32, device=device)
    ids = torch.zeros(2, num_rows, dtype=torch.int32, device=device)
    return {
        "sum of a layer's half": lambda: ranks.add_up(hidden),
        "the same by one all-reduce": lambda: ranks.all_reduced(hidden),
        "logits side by side": lambda: ranks.side_by_side(logits),
        "likeliest side by side": lambda: ranks.side_by_side(choices),
        "ids of the first rank": lambda: ranks.take_from_first(ids),
    }


def graph_s(run: Run) -> float:
    """Of one run, by the device's clock."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(NUM):
            run()
    for _ in range(ROUNDS * 4):  # the clocks rise meanwhile
        graph.replay()
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    for _ in range(ROUNDS):
        graph.replay()
    ended.record()
    torch.cuda.synchronize()
    graph.reset()  # a communicator does not end before it
    return began.elapsed_time(ended) / 1e3 / ROUNDS / NUM


def loop_s(run: Run) -> float:
    """The same without a GPU."""
    run()
    began_s = time.perf_counter()
    run()
    return time.perf_counter() - began_s


if __name__ == "__main__":
    main()
