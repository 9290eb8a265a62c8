"""Text while it grows against text as a whole: every split, every stop, characters of several tokens."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from loopwright.text.stream import TextStream, detokenize

CHARACTERS = st.sampled_from(["a", "b", "c", "\n", "é", "e\u0301", "🙂", "👩🏽\u200d🚀", "日", "\u0300"])
TEXTS = st.lists(CHARACTERS, max_size=30).map("".join)
STOPS = st.lists(st.lists(CHARACTERS, min_size=1, max_size=4).map("".join), max_size=4)
CUTS = st.lists(st.integers(0, 500), max_size=40)


def reference(text: bytes, stops: list[str]) -> str:
    """What a reader must see in the end: everything before the stop that is the first to be complete."""
    for end in range(len(text)):
        starts = [end + 1 - len(stop.encode()) for stop in stops if text[: end + 1].endswith(stop.encode())]
        if starts:
            return text[: min(starts)].decode()
    return text.decode()


def split(text: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


def deltas_of(tokens: list[bytes], stops: list[str]) -> list[str]:
    stream = TextStream(tokens, stops)
    return [stream.push(token_id) for token_id in range(len(tokens))] + [stream.finish()]


@given(TEXTS, STOPS, CUTS)
def test_streamed_text_is_the_reference_s_and_has_no_replacement_character(text, stops, cuts):
    shown = "".join(deltas_of(split(text.encode(), cuts), stops))

    assert shown == reference(text.encode(), stops)
    assert "\ufffd" not in shown


@given(TEXTS, STOPS, CUTS)
def test_only_an_incomplete_character_or_a_proper_prefix_of_a_stop_is_held_back(text, stops, cuts):
    tokens = split(text.encode(), cuts)
    stream = TextStream(tokens, stops)
    shown = ""
    for token_id in range(len(tokens)):
        shown += stream.push(token_id)
        if stream.match:
            return
        pushed = b"".join(tokens[: token_id + 1])
        assert pushed.startswith(shown.encode())
        held = pushed[len(shown.encode()) :]
        is_prefix = any(stop.encode().startswith(held) and stop.encode() != held for stop in stops)
        is_cut_character = len(held) < 4 and held.decode(errors="ignore") == ""
        assert is_prefix or is_cut_character


@given(TEXTS, STOPS, CUTS)
def test_no_part_of_a_stop_is_ever_shown(text, stops, cuts):
    tokens = split(text.encode(), cuts)
    stream = TextStream(tokens, stops)
    shown = "".join(stream.push(token_id) for token_id in range(len(tokens)))

    assert not any(stop in shown for stop in stops)
    if stream.match:
        assert len(shown.encode()) == stream.match.start
        assert stream.finish() == ""


@given(st.lists(st.binary(max_size=5), max_size=12))
def test_invalid_bytes_become_one_replacement_per_maximal_part_however_they_are_split(tokens):
    whole = b"".join(tokens)
    shown = "".join(deltas_of(tokens, []))

    assert shown == "".join(deltas_of([whole], [])) == detokenize(tokens, range(len(tokens)))
    # The end may be dropped there and replaced here; a letter after it makes it invalid for both.
    assert detokenize([whole, b"x"], [0, 1]) == (whole + b"x").decode(errors="replace")


@given(st.lists(st.binary(max_size=4), max_size=12), STOPS, CUTS)
def test_stops_among_invalid_bytes_do_not_depend_on_the_split(parts, stops, cuts):
    whole = b"".join([*parts, *(stop.encode() for stop in stops)])
    assert "".join(deltas_of(split(whole, cuts), stops)) == "".join(deltas_of([whole], stops))


def test_a_character_cut_by_the_end_is_dropped():
    tokens = ["a🙂".encode()[:3]]
    assert deltas_of(tokens, []) == ["a", ""]
    assert detokenize(tokens, [0]) == "a"


def test_held_text_is_flushed_at_the_end():
    assert deltas_of([b"one\nUs", b"e"], ["\nUser:"]) == ["one", "", "\nUse"]


def test_nothing_comes_after_a_stop():
    assert deltas_of([b"a END b", b" END c"], ["END"]) == ["a ", "", ""]


def test_control_tokens_add_nothing():
    assert deltas_of([b"a", b"", b"b"], []) == ["a", "", "b", ""]
