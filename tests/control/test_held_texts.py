"""One forward under a grammar: what may follow a text that stands already, in distributions and in what is sampled."""

import msgspec
import pytest

from loopwright.core.calls import DistributionRequest, ForwardText, Sampling
from loopwright.core.grammars import Grammar, HeldText
from loopwright.core.ids import PageName

from .fake_grammars import FakeCompiler, Places
from .rig import QUEUE, Rig

PLACES = Places({11, 12}, {13, 14, 15}, {16}, optional_from=2)
ENDS = (2, 3)


def asked(*text: int, **fields: object) -> ForwardText:
    held = HeldText(Grammar("regex", "g"), text, ENDS)
    given = {"distributions": (DistributionRequest(index=0, k=64), DistributionRequest(k=64)), "held": held, **fields}
    return ForwardText(queue=QUEUE, pages=(), grow_from=PageName(1), kv_len=0, tokens=(5, 6), positions=(0, 1), **given)  # type: ignore[arg-type]


def allowed_after(*text: int) -> list[set[int] | None]:
    """What the row that ran allows in each of its distributions."""
    rig = Rig(grammars=FakeCompiler(g=PLACES))
    run = rig.open("a")
    call = run.submit(asked(*text))
    rig.drain()
    assert run.error_type(call) is None
    return allowed_in(rig)


def allowed_in(rig: Rig) -> list[set[int] | None]:
    (row,) = rig.executor.batches[-1].rows
    return [None if one.allowed is None else set(one.allowed) for one in row.distributions]


@pytest.mark.parametrize(
    ("text", "expected"),
    [((), {11, 12}), ((11,), {13, 14, 15}), ((12, 14), {16, 2, 3}), ((12, 14, 16), {2, 3})],
    ids=str,
)
def test_the_distribution_of_what_follows_a_text_is_over_what_its_grammar_allows(
    text: tuple[int, ...], expected: set[int]
) -> None:
    assert allowed_after(*text) == [None, expected]


def test_what_is_sampled_after_the_last_token_is_held_too() -> None:
    rig = Rig(grammars=FakeCompiler(g=PLACES))
    run = rig.open("a")
    call = run.submit(asked(11, sampling=Sampling(temperature=1.0, seed=4)))
    rig.drain()
    assert run.result(call).token in {13, 14, 15}


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (asked(11, 11), "held.text"),
        (asked(11, 13, 16, 16), "held.text"),
        (asked(held=HeldText(Grammar("regex", "g"), (11, 13, 16))), "held.stop_tokens"),
        (asked(10**6), "held.text"),
        (asked(11, sampling=Sampling(allowed=(13,))), "sampling.allowed"),
        (asked(11, distributions=(DistributionRequest(k=9, allowed=(13,)),)), "distributions[0].allowed"),
        (asked(11, sampling=Sampling(), num_drafts=1), "held"),
    ],
    ids=range(7),
)  # fmt: skip
def test_what_cannot_be_held_is_refused_by_field(call: ForwardText, field: str) -> None:
    rig = Rig(grammars=FakeCompiler(g=PLACES))
    run = rig.open("a")
    call_id = run.submit(call)
    rig.drain()
    assert run.error(call_id).field == field


def test_a_call_waits_for_its_grammar_and_no_other_waits_for_it() -> None:
    compiler = FakeCompiler()
    rig = Rig(grammars=compiler)
    run, other = rig.open("a"), rig.open("b")
    waiting = run.submit(asked())
    plain = other.submit(msgspec.structs.replace(asked(), held=None))
    rig.drain()
    assert other.error_type(plain) is None
    assert rig.executor.batches
    compiler.finish("g", PLACES)
    rig.drain()
    assert run.error_type(waiting) is None
    assert allowed_in(rig) == [None, {11, 12}]
