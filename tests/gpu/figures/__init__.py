"""The sections of the speed report, and which of them run for which model, the most important first.

A new one is a module here, a place in `SECTIONS`, and one in `PLAN`; what it may take is its `budget_s`.
"""

from figures.arriving import GOODPUT, TTFT
from figures.cost import COST
from figures.decoding import SAMPLING, TPOT
from figures.exactness import NOISE
from figures.few_bits import QUALITY
from figures.over_http import HTTP
from figures.products import PRODUCTS
from figures.prompts import PREFILL
from figures.ranks import RANKS
from figures.report import Section
from figures.suites import AGENTS, MECHANISMS

SECTIONS: tuple[Section, ...] = (
    TPOT, PREFILL, TTFT, GOODPUT, SAMPLING, HTTP, MECHANISMS, NOISE, COST, QUALITY, AGENTS, RANKS, PRODUCTS,
)  # fmt: skip

PLAN: tuple[tuple[str, tuple[Section, ...]], ...] = (
    ("llama-8b", (TPOT, PREFILL)),
    ("llama-1b", (TPOT, PREFILL)),
    ("llama-8b", (MECHANISMS,)),
    ("llama-1b", (MECHANISMS,)),
    ("llama-8b", (HTTP,)),
    ("llama-1b", (HTTP,)),
    ("llama-8b", (TTFT, GOODPUT)),
    ("llama-1b", (AGENTS,)),
    ("", (QUALITY,)),
    ("llama-1b", (TTFT, GOODPUT, SAMPLING)),
    ("llama-1b", (COST,)),
    ("llama-1b", (NOISE,)),
    ("llama-3b", (MECHANISMS,)),
    ("llama-3b", (TPOT,)),
    ("qwen3-30b-a3b", (TPOT, PREFILL)),
    ("llama-8b", (PRODUCTS,)),
    ("llama-8b", (RANKS,)),
)
"""What a process does: sections of a model that share its engine, or one other."""
