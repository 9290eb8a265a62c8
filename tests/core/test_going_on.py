"""What is new in a call makes the same call again on the other side, or the whole call is sent."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from loopwright.core.calls import DistributionRequest, ForwardText, Sampling
from loopwright.core.going_on import LastText
from loopwright.core.ids import PageName, QueueName

SIZE = 4
FIRST = ForwardText(
    queue=QueueName(1), pages=(), grow_from=PageName(50), kv_len=0, tokens=(1, 2, 3), positions=(0, 1, 2),
    distributions=(DistributionRequest(k=5),),
)  # fmt: skip

CHANGES: list[dict[str, Any]] = [
    {"queue": QueueName(2)}, {"kv_len": 7}, {"pages": (PageName(9),)}, {"pages": ()}, {"tokens": (5, 6)},
    {"tokens": ()}, {"positions": ()}, {"positions": (1, 2)}, {"positions": (900,)}, {"sampling": Sampling()},
    {"mask": ((0, 2),)}, {"num_drafts": 1}, {"grow_from": None}, {"grow_from": PageName(1 << 40)},
    {"tokens": (1 << 40,)}, {"tokens": (-1,)}, {"positions": (-1,)}, {"distributions": ()},
    {"distributions": (DistributionRequest(k=5, entropy=True),)},
]  # fmt: skip


def followed(text: ForwardText, token: int) -> ForwardText:
    """What a program asks next that chooses each token."""
    kv_len, pages = text.kv_len + len(text.tokens), text.pages
    if kv_len and -(-kv_len // SIZE) > len(pages) and text.grow_from is not None:
        pages = (*pages, text.grow_from)
    grow_from = None if text.grow_from is None else PageName(text.grow_from + (pages != text.pages))
    return replace(text, pages=pages, kv_len=kv_len, tokens=(token,), positions=(kv_len,), grow_from=grow_from)


@given(st.lists(st.one_of(st.none(), st.none(), st.none(), st.sampled_from(CHANGES)), max_size=20))
def test_both_sides_have_the_same_call(changes: list[dict[str, Any] | None]) -> None:
    here, there, text = LastText(FIRST), LastText(FIRST), FIRST
    for token, change in enumerate(changes):
        text = replace(followed(text, token), **(change or {}))
        one = here.next_of(text)
        if one is None:
            here, there = LastText(text), LastText(text)
        else:
            assert there.text_of(one) == text
            there.go_on(one)


def test_a_program_that_chooses_each_token_says_only_what_is_new() -> None:
    last, text, grown = LastText(FIRST), FIRST, []
    for token in range(40):
        text = followed(text, token)
        one = last.next_of(text)
        assert one is not None
        grown.append(one.has_grown)
    assert sum(grown) == 40 // SIZE + 1
    assert grown.index(True) == 0
