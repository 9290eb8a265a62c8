"""The pool: each grammar is compiled once, on another thread, and no more are kept than was said."""

import threading
from concurrent.futures import CancelledError
from dataclasses import replace

import pytest
from grammar_rig import EOS, ids_of

from loopwright.core.errors import BadRequest
from loopwright.core.grammars import Grammar
from loopwright.grammar.compile import compile_grammar
from loopwright.grammar.pool import GrammarPool
from loopwright.grammar.vocabulary import Vocabulary
from loopwright.text.byte_tokenizer import byte_tokenizer


@pytest.fixture
def pool():
    pool = GrammarPool(byte_tokenizer(), 260, max_cached=3)
    yield pool
    pool.close()


def test_a_grammar_is_compiled_once_and_off_this_thread(pool: GrammarPool) -> None:
    threads: list[str] = []
    first = pool.compile(Grammar("regex", "a+"))
    first.result()
    again = pool.compile(Grammar("regex", "a+"))
    again.add_done_callback(lambda _: threads.append(threading.current_thread().name))
    assert again is first
    assert pool.compile(Grammar("lark", "a+")) is not first
    pool.compile(Grammar("choice", '["b"]')).result()
    assert [one.name for one in threading.enumerate() if one.name.startswith("loopwright-grammar")] != []


def test_a_fault_is_remembered_as_a_grammar_is(pool: GrammarPool) -> None:
    first = pool.compile(Grammar("regex", "foo**"))
    with pytest.raises(BadRequest):
        first.result()
    assert pool.compile(Grammar("regex", "foo**")) is first


def test_the_longest_unused_is_forgotten_first(pool: GrammarPool) -> None:
    futures = [pool.compile(Grammar("regex", pattern)) for pattern in "abc"]
    assert pool.compile(Grammar("regex", "a")) is futures[0]
    pool.compile(Grammar("regex", "d"))
    assert pool.num_cached == 3
    assert pool.compile(Grammar("regex", "a")) is futures[0]
    assert pool.compile(Grammar("regex", "b")) is not futures[1]


def test_states_of_one_grammar_share_nothing(pool: GrammarPool) -> None:
    grammar = pool.compile(Grammar("regex", "ab")).result()
    one, other = grammar.start(), grammar.start()
    one.accept(ord("a"))
    assert list(one.forced()) == []
    assert list(other.forced()) == [ord("a")]


def test_what_waits_when_the_pool_closes_is_cancelled() -> None:
    pool = GrammarPool(byte_tokenizer(), 260)
    is_running, may_go = threading.Event(), threading.Event()
    pool._threads.submit(lambda: (is_running.set(), may_go.wait()))
    is_running.wait()
    waiting = pool.compile(Grammar("regex", "a"))
    closing = threading.Thread(target=pool.close)
    closing.start()
    with pytest.raises(CancelledError):
        waiting.result()
    may_go.set()
    closing.join()


def test_tokens_beyond_the_model_s_vocabulary_are_never_allowed() -> None:
    tokenizer = byte_tokenizer()
    longer = replace(tokenizer, token_bytes=(*tokenizer.token_bytes, b"yes", b"no"))
    state = compile_grammar(Grammar("regex", "(yes|no)?"), Vocabulary(longer, 260)).start()
    assert ids_of(state.allowed_bits([EOS])) == sorted((*b"ny", EOS))
