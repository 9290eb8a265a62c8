"""The loop that samples one token, looks at it, and only then runs it: what every segment must equal.

Knows no pages, batches or windows. The verdict of whoever looks is a pure function, so that two loops can be compared.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from loopwright.core.calls import Generate, Sampling
from loopwright.core.grammars import Grammar
from loopwright.core.samplers import SamplerNode, TracedSampler, TracedState
from loopwright.core.watch_calls import Watch

from .fake_executor import VOCAB_SIZE, choose, entropy_of, sampled_hidden
from .fake_grammars import Places
from .reference import NaiveContext
from .rig import generate

PROMPT = (5, 6, 7, 8, 9, 10)
PAGE_SIZE = 4
LETTERS = tuple(
    b"" if token < 2 else b"abc"[token % 3 :][:1] for token in range(VOCAB_SIZE)
)  # so that stops are common
COUNTER = TracedSampler(
    (SamplerNode("scores"), SamplerNode("state", name="count")), 0, (TracedState("count", False, 1),)
)
PLACES = Places(range(2, 50), {11, 12}, {13}, {14}, range(5, 20), {21}, range(2, 60), range(2, 60), {30, 31, 32})

Verdict = Callable[[int, int, int], str]  # index, token, how often it was vetoed in this place → keep, veto, ban, leave


@dataclass
class Looked:
    """What came of a loop."""

    tokens: list[int] = field(default_factory=list)
    reason: str = "length"
    stop: str | int | None = None
    count: float = 0.0

    def num_run(self) -> int:
        """Tokens that ran: all but the last, which only a look at what follows it needs."""
        return len(PROMPT) + (len(self.tokens) if self.reason == "entropy" else max(len(self.tokens) - 1, 0))

    def num_pages(self) -> int:
        return -(-self.num_run() // PAGE_SIZE)


def step_by_step(
    call: Generate, verdict: Verdict, places: Places | None = None, context: NaiveContext | None = None
) -> Looked:
    """Samples one token, looks at it, and only then runs it, in a context that may have run others before."""
    context, looked = context or NaiveContext(), Looked()
    hidden, position = context.run(call.tokens, call.positions)[-1], call.positions[-1] + 1
    banned: set[int] = set()
    num_vetoes = 0
    while True:
        state = None if places is None else places.start()
        for one in looked.tokens if state is not None else ():
            state.accept(one)
        is_choice = state is None or not state.forced()
        if call.stop_entropy is not None and is_choice and entropy_of(hidden) > call.stop_entropy:
            looked.reason = "entropy"
            return looked
        token = sample(call, hidden, position, looked, banned, state)
        match verdict(len(looked.tokens), token, num_vetoes):
            case "ban":
                banned.add(token)
                num_vetoes += 1
                continue
            case "veto":
                num_vetoes += 1
                continue
            case "leave":
                looked.reason = "interrupted"
                return looked
        looked.tokens.append(token)
        if state is not None and token not in call.stop_tokens:
            state.accept(token)
        if is_ended(call, looked, state is not None and state.is_over):
            return looked
        hidden = context.run([token], [position])[-1]
        position, banned, num_vetoes = position + 1, set(), 0


def sample(call: Generate, hidden: int, position: int, looked: Looked, banned: set[int], state) -> int:
    allowed = set(call.sampling.allowed or range(VOCAB_SIZE))
    if state is not None:
        bits = int.from_bytes(state.allowed_bits(call.stop_tokens), "little")
        allowed = {one for one in range(VOCAB_SIZE) if bits >> one & 1}
    sampling = call.sampling
    if banned or state is not None or sampling.allowed:
        sampling = msgspec.structs.replace(sampling, allowed=tuple(sorted(allowed - banned)))
    if call.sampler is not None:
        hidden = sampled_hidden(hidden, len(looked.tokens))
    return choose(hidden, sampling, position, looked.tokens if call.sampling.has_penalties else ())


def is_ended(call: Generate, looked: Looked, is_over: bool) -> bool:
    text = b"".join(LETTERS[one] for one in looked.tokens).decode()
    if looked.tokens[-1] in call.stop_tokens:
        looked.reason, looked.stop = "stop_token", looked.tokens[-1]
    elif call.stop and call.stop[0] in text:
        looked.reason, looked.stop = "stop", call.stop[0]
    elif is_over:
        looked.reason = "grammar_end"
    elif len(looked.tokens) < call.max_tokens:
        return False
    return True


OPTIONS = {
    "plain": {},
    "greedy": {"sampling": Sampling()},
    "penalties": {"sampling": Sampling(temperature=1.0, seed=3, presence_penalty=1.0)},
    "allowed": {"sampling": Sampling(temperature=1.0, seed=3, allowed=tuple(range(3, 40, 2)))},
    "stop token": {"stop_tokens": tuple(range(40, 44))},
    "stop string": {"stop": ("aba",)},
    "entropy": {"stop_entropy": 8.5},
    "sampler": {"sampler": COUNTER, "sampler_state": {"count": 0.0}},
    "grammar": {"grammar": Grammar("regex", "g")},
    "sampler under a grammar": {"grammar": Grammar("regex", "g"), "sampler": COUNTER, "sampler_state": {"count": 0.0}},
    "penalties under a grammar": {
        "grammar": Grammar("regex", "g"),
        "sampling": Sampling(temperature=1.0, seed=3, frequency_penalty=1.0),
    },
    "entropy under a grammar": {"grammar": Grammar("regex", "g"), "stop_entropy": 8.5},
}


def call_of(option: str, seed: int, watch: Watch | None = None) -> tuple[Generate, Places | None]:
    """A segment of at most nine tokens, and what its text must be."""
    fields = {"sampling": Sampling(temperature=1.0, seed=3), "watch": watch, **OPTIONS[option]}
    call = msgspec.structs.replace(generate(PROMPT, max_tokens=9), **fields)
    call = msgspec.structs.replace(call, sampling=msgspec.structs.replace(call.sampling, seed=seed))
    return call, None if call.grammar is None else PLACES
