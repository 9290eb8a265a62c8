"""The sections of the speed report, in the order in which they run. A new one is a module here and a place in this
list; what it may take is its `budget_s`."""

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
