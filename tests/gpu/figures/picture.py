"""Draws the time from token to token by batch, beside the goals and vLLM's figures. Never measures.

`python picture.py REPORT.jsonl PICTURE.svg` draws it again, on a machine that has matplotlib if the GPU's has none.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from figures import peers
from figures.goals import SHORT, Found, read_found

LINES = (
    ("tpot", "at control", "C0", "o-"),
    ("worker", "at the model worker", "C2", "^-"),
    ("http", "over HTTP", "C1", "s-"),
)


def points(found: Found, place: str, shape: str) -> list[tuple[int, float]]:
    """Batch and the best TPOT in ms, of those that were measured."""
    names = {batch: f"{place}/{shape}/{batch}" for batch in peers.BATCHES}
    return [(batch, min(found[name])) for batch, name in names.items() if name in found]


def draw(found: Found, path: Path) -> None:
    """Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (an extra)

    figure = Figure(figsize=(9, 4))
    for number, shape in enumerate(peers.GOAL_TPOT_MS):
        axes = figure.add_subplot(1, 2, 1 + number)
        for place, label, color, style in LINES:
            if mine := points(found, place, shape):
                axes.plot(*zip(*mine, strict=True), style, color=color, label=label)
        axes.plot(peers.BATCHES, peers.VLLM_TPOT_MS[shape], "D:", color="0.4", label="vLLM 0.25.1, elsewhere")
        axes.plot(peers.BATCHES, peers.GOAL_TPOT_MS[shape], "_", color="C3", markersize=16, label="goal, at most")
        axes.set(xscale="log", yscale="log", title=f"{SHORT[shape]}, one GPU", xlabel="streams", ylabel="ms a token")
        ticks = sorted({*peers.VLLM_TPOT_MS[shape], *(value for _, value in points(found, "tpot", shape))})
        low, high = min(ticks), max(ticks)
        marks = [one for one in (0.5, 1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30) if low / 1.5 <= one <= high * 1.5]
        axes.set_xticks(peers.BATCHES, [str(one) for one in peers.BATCHES])
        axes.set_yticks(marks, [f"{one:g}" for one in marks])
        axes.minorticks_off()
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    draw(read_found(Path(sys.argv[1])), Path(sys.argv[2]))
