"""What a model lacks is refused, with the trait and the call named; what it has is not."""

from typing import get_args

import pytest

from loopwright.core.call_table import CALL_KINDS, op_of
from loopwright.core.calls import (
    AllocateEmbeds,
    AllocatePages,
    ClearQueue,
    CopyPage,
    CreateQueue,
    DebugQuery,
    DistributionRequest,
    EmbedImage,
    EmbedText,
    ExportedPages,
    ExportPages,
    Forward,
    ForwardText,
    ForwardWithAdapter,
    FreeEmbeds,
    FreePages,
    ImportPages,
    MaskPage,
    NextDistribution,
    QueueCall,
    Sample,
    Sampling,
    SetPriority,
    SharePages,
    ShiftKv,
    Synchronize,
    UnexportPages,
)
from loopwright.core.host_calls import ProgramCall
from loopwright.core.ids import EmbedName, PageName, QueueName
from loopwright.core.traits import NEEDS, TRAITS, Trait, supported
from loopwright.core.watch_calls import Acknowledge, Veto

from .rig import QUEUE, SERVED_TRAITS, Rig, generate

P1, P2, P3 = PageName(1), PageName(2), PageName(3)
E1, E2 = EmbedName(1), EmbedName(2)
CALLS: tuple[QueueCall, ...] = (
    CreateQueue(queue=QueueName(2)),
    SetPriority(queue=QUEUE, priority=1),
    DebugQuery(),
    Synchronize(queue=QUEUE),
    ClearQueue(queue=QUEUE),
    AllocatePages(queue=QUEUE, pages=(P1, P2)),
    AllocateEmbeds(queue=QUEUE, embeds=(E1, E2)),
    EmbedText(queue=QUEUE, tokens=(5,), positions=(0,), embeds=(E1,)),
    Forward(queue=QUEUE, pages=(P1,), kv_len=0, inputs=(E1,), outputs=(E2,)),
    NextDistribution(queue=QUEUE, embed=E2, request=DistributionRequest(k=5)),
    Sample(queue=QUEUE, embed=E2, sampling=Sampling(), position=1),
    CopyPage(queue=QUEUE, source=P1, target=P2, size=1),
    ShiftKv(queue=QUEUE, pages=(P1,), size=1, delta=3),
    ForwardText(queue=QUEUE, pages=(P1,), kv_len=1, tokens=(6,), positions=(1,)),
    generate((5,), grow_from=100, max_tokens=1),
    Acknowledge(handle=1, num_tokens=1),
    Veto(handle=1, index=0),
    ExportPages(queue=QUEUE, name="doc", pages=(P1,), positions=(0, 1)),
    ExportedPages(),
    ImportPages(queue=QUEUE, name="doc", pages=(P3,)),
    UnexportPages(queue=QUEUE, name="doc"),
    SharePages(queue=QUEUE, sources=(P1,), targets=(PageName(9),)),
    MaskPage(queue=QUEUE, page=PageName(9), keep=(True, False) * 2),
    FreePages(queue=QUEUE, pages=(P1,)),
    FreeEmbeds(queue=QUEUE, embeds=(E1,)),
    EmbedImage(queue=QUEUE, image=b"", positions=(), embeds=()),
    ForwardWithAdapter(queue=QUEUE, pages=(), kv_len=0, inputs=(), adapter="a"),
)
"""Every call of control. In this order each of those that a model of SERVED_TRAITS can do goes well."""


def lacking(call: QueueCall, traits: tuple[Trait, ...]) -> list[Trait]:
    return [trait for trait in CALL_KINDS[type(call)].traits if trait not in traits]


def test_the_table_holds_every_call_that_a_program_may_send_and_these_tests_every_one_of_control() -> None:
    assert set(CALL_KINDS) == set(get_args(ProgramCall))
    assert sorted(op_of(type(call)) for call in CALLS) == sorted(op_of(one) for one in get_args(QueueCall))


@pytest.mark.parametrize("trait", TRAITS)
def test_without_a_trait_its_calls_fail_and_name_it_the_call_and_what_there_is(trait: Trait) -> None:
    traits = tuple(one for one in SERVED_TRAITS if one != trait)
    for call in CALLS:
        run = Rig(traits=traits).open("a")
        call_id = run.submit(call)
        if not (missing := lacking(call, traits)):
            assert run.error_type(call_id) != "ModelLacksTrait"
            continue
        error = run.error(call_id)
        assert error.type == "ModelLacksTrait"
        assert f"{op_of(type(call))}: the model fake lacks the trait {missing[0]}" in error.message
        assert traits[0] in error.message


def test_with_its_traits_every_call_goes_well_and_the_table_is_right_about_who_answers() -> None:
    rig = Rig()
    run = rig.open("a")
    for call in CALLS:
        kind = CALL_KINDS[type(call)]
        call_id = run.submit(call)
        if lacking(call, SERVED_TRAITS):
            assert run.error_type(call_id) == "ModelLacksTrait"
            run.now(ClearQueue(queue=QUEUE))
            continue
        assert (run.final(call_id) is None) == (kind.answered_by == "inference"), call
        rig.drain()
        assert type(run.result(call_id)) is kind.completes_with
    run.session.close()
    rig.assert_all_free()


def test_a_call_that_the_model_lacks_poisons_its_queue_and_what_it_should_have_written() -> None:
    rig = Rig()
    run = rig.open("a", queues=(1, 2))
    run.now(AllocateEmbeds(queue=QUEUE, embeds=(E1,)))
    before = run.submit(generate((5,), max_tokens=3))
    refused = run.submit(EmbedImage(queue=QUEUE, image=b"png", positions=(0,), embeds=(E1,)))
    reader = run.submit(NextDistribution(queue=QueueName(2), embed=E1, request=DistributionRequest(k=5)))
    behind = run.submit(Synchronize(queue=QUEUE))
    rig.drain()
    assert [run.error_type(one) for one in (before, refused, reader, behind)] == [
        None, "ModelLacksTrait", "Poisoned", "Poisoned",
    ]  # fmt: skip
    assert run.order().index(before) < run.order().index(refused)


def test_a_trait_without_what_it_needs_is_not_supported() -> None:
    assert supported(TRAITS) == TRAITS
    assert supported(("tokenize", "input_text", "forward")) == ()
    assert supported(("adapter", "output_text", "allocate")) == ("allocate", "output_text")
    for trait in TRAITS:
        found = supported((trait, *NEEDS[trait], *(deeper for one in NEEDS[trait] for deeper in NEEDS[one])))
        assert trait in found
