"""Owns the threads that compile grammars, and the grammars that were compiled. Never checks or follows one.

Made by compose, asked by control through `core.grammars`. A grammar that is asked for twice is compiled once, and so is
one that fails: sending the same fault again costs nothing.
"""

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from hashlib import sha256
from threading import Lock

from loopwright.core.calls import Grammar
from loopwright.core.grammars import CompiledGrammar
from loopwright.grammar.compile import compile_grammar
from loopwright.grammar.vocabulary import Vocabulary
from loopwright.text.tokenizer import Tokenizer

MAX_CACHED = 128
NUM_THREADS = 1  # of Python much; a second thread would take the interpreter from the event loop


class GrammarPool:
    """Implements core.grammars.GrammarCompiler for one model. `close` ends its threads."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, max_cached: int = MAX_CACHED) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._max_cached = max_cached
        self._threads = ThreadPoolExecutor(NUM_THREADS, "loopwright-grammar")
        self._lock = Lock()
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
        return compile_grammar(grammar, self._vocabulary)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(self._tokenizer, self._vocab_size)  # on the one thread, when the first grammar comes
