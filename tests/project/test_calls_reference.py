"""docs/calls.md says what the calls are now."""

import inspect

from calls_reference import REFERENCE, reference

from loopwright.core.call_table import CALL_KINDS, op_of


def test_the_reference_of_calls_is_what_the_source_says():
    assert REFERENCE.read_text(encoding="utf-8") == reference(), "run: make reference"


def test_every_call_says_what_it_does():
    own = [op_of(call) for call in CALL_KINDS if "__doc__" in vars(call) and len(inspect.cleandoc(call.__doc__)) > 10]
    assert own == [op_of(call) for call in CALL_KINDS]


def test_the_reference_has_every_field_of_every_call():
    text = reference()
    for call in CALL_KINDS:
        _, _, rest = text.partition(f"### `{op_of(call)}`\n")
        section = rest.partition("\n### ")[0]
        fields = set(call.__struct_fields__) - {"answer"}
        assert [name for name in fields if f"| `{name}` |" not in section] == []
