"""Real grammars and the byte model in the real engine, under a controller that a test drives step by step."""

from typing import Any

import msgspec
import torch
from grammar_rig import EOS, byte_vocabulary

from control.rig import Rig, generate, model_info
from loopwright.control.config import ControlConfig
from loopwright.control.controller import Controller
from loopwright.core.batch import Batch, StepResult
from loopwright.core.calls import Generate, Sampling
from loopwright.core.clock import FakeClock
from loopwright.core.grammars import Grammar
from loopwright.engine.byte_model import byte_model
from loopwright.engine.model_runner import ModelRunner
from loopwright.engine.oracle import Generated, Oracle
from loopwright.grammar.compile import compile_grammar
from loopwright.grammar.pool import GrammarPool
from loopwright.text.byte_tokenizer import byte_tokenizer

PROMPT = tuple(b"Answer: ")


class RunnerExecutor:
    """The engine without its thread."""

    def __init__(self, num_blocks: int) -> None:
        torch.set_num_threads(1)
        self._runner = ModelRunner(byte_model(), num_blocks=num_blocks, num_slots=1)
        self.shape = self._runner.shape

    def run(self, batch: Batch) -> StepResult:
        with torch.inference_mode():
            return self._runner.run(batch)


class ByteRig(Rig):
    """Use as a context manager: it ends the pool's thread, and asks whether anything is still held."""

    def __init__(self, num_blocks: int = 2048) -> None:
        super().__init__()
        self.executor = RunnerExecutor(num_blocks)
        self.clock = FakeClock()
        self.pool = GrammarPool(byte_tokenizer(), self.executor.shape.vocab_size)
        token_bytes = byte_tokenizer().token_bytes
        self.controller = Controller(
            self.executor, token_bytes, model_info(self.executor), self.clock, ControlConfig(), self.pool
        )

    def __enter__(self) -> "ByteRig":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.pool.close()
        if exc_info == (None, None, None):
            self.assert_all_free()

    def compile_all(self, *calls: Generate) -> None:
        """Waits until the calls' grammars are compiled or refused."""
        for call in calls:
            if call.grammar is not None:
                self.pool.compile(call.grammar).exception()

    def solo(self, call: Generate) -> Any:
        """What comes of a call that runs alone: a segment, or an error."""
        run = self.open(f"solo {id(call)}")
        number = run.submit(call)
        self.compile_all(call)
        self.drain()
        completion = run.final(number)
        run.session.close()
        return completion.result if completion.error is None else completion.error


def call_under(grammar: Grammar | None, seed: int = 0, max_tokens: int = 40, **sampling: Any) -> Generate:
    """A segment of the byte model at temperature 1."""
    sampled = Sampling(**{"temperature": 1.0, "seed": seed, **sampling})
    call = generate(PROMPT, sampling=sampled, max_tokens=max_tokens, stop_tokens=(EOS,))
    return msgspec.structs.replace(call, grammar=grammar)


def naive(oracle: Oracle, call: Generate) -> Generated:
    """What the one-request loop makes of a call."""
    state = None if call.grammar is None else compile_grammar(call.grammar, byte_vocabulary()).start()
    return oracle.generate(
        call.tokens, call.sampling, call.max_tokens, stop_tokens=call.stop_tokens, positions=call.positions,
        grammar=state,
    )  # fmt: skip
