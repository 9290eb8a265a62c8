"""Owns the thread that compiles grammars, and the grammars that were compiled. Never checks or follows one.

Made by compose, asked by control through `core.grammars`. A grammar that is asked for twice is compiled once, and so is
one that fails: sending the same fault again costs nothing.
"""

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING

from loopwright.core.grammars import CompiledGrammar, Grammar
from loopwright.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from loopwright.grammar.vocabulary import Vocabulary

MAX_CACHED = 128
STACK_BYTES = 128 << 20  # llguidance recurses along references: those that pass the checks need a third of it


class GrammarPool:
    """Implements core.grammars.GrammarCompiler for one model. `close` ends its thread."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, max_cached: int = MAX_CACHED) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._max_cached = max_cached
        self._threads = _threads_with_deep_stacks()
        self._lock = threading.Lock()
        self._cache: OrderedDict[bytes, Future[CompiledGrammar]] = OrderedDict()  # the longest unused first

    def compile(self, grammar: Grammar) -> "Future[CompiledGrammar]":
        key = sha256(f"{grammar.kind}\0{grammar.source}".encode(errors="surrogatepass")).digest()
        with self._lock:
            future = self._cache.get(key)
            if future is None:
                future = self._cache[key] = self._threads.submit(self._compile, grammar)
                while len(self._cache) > self._max_cached:
                    self._cache.popitem(last=False)
            self._cache.move_to_end(key)
            return future

    @property
    def num_cached(self) -> int:
        return len(self._cache)

    def close(self) -> None:
        """Waits for what is being compiled; what waits for a thread fails as cancelled."""
        self._threads.shutdown(cancel_futures=True)

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        from loopwright.grammar.compile import compile_grammar  # noqa: PLC0415 (see `_vocabulary`)

        return compile_grammar(grammar, self._vocabulary)

    @cached_property
    def _vocabulary(self) -> "Vocabulary":
        """Made on the one thread, when the first grammar comes: llguidance is imported then as well."""
        from loopwright.grammar.vocabulary import Vocabulary  # noqa: PLC0415

        return Vocabulary(self._tokenizer, self._vocab_size)


def _threads_with_deep_stacks() -> ThreadPoolExecutor:
    """One thread: much of the work is Python's, and a second would only take the interpreter from the event loop."""
    threads = ThreadPoolExecutor(1, "loopwright-grammar")
    usual = threading.stack_size(STACK_BYTES)
    try:
        threads.submit(int).result()  # threads start with their first task
    finally:
        threading.stack_size(usual)
    return threads
