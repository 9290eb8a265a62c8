"""docs/sdk.md and docs/metadata.md say what the sdk and the metadata are now."""

import inspect

from sdk_reference import METADATA_REFERENCE, SDK_REFERENCE, metadata_reference, sdk_reference, undescribed

from loopwright import sdk
from loopwright.runtime.limits import Limits
from loopwright.runtime.permissions import Permissions


def test_the_references_are_what_the_source_says():
    assert SDK_REFERENCE.read_text(encoding="utf-8") == sdk_reference(), "run: make reference"
    assert METADATA_REFERENCE.read_text(encoding="utf-8") == metadata_reference(), "run: make reference"


def test_the_reference_has_every_public_name():
    text = sdk_reference()
    names = [name for name in sdk.__all__ if name != "errors"]
    assert [name for name in names if f"`{name}`" not in text] == []
    methods = [name for name, one in vars(sdk.Context).items() if inspect.isfunction(one) and not name.startswith("_")]
    assert [name for name in methods if f"`Context.{name}`" not in text] == []


def test_every_limit_and_permission_says_what_it_means():
    assert undescribed() == []
    text = metadata_reference()
    names = (*Limits.__struct_fields__, *Permissions.__struct_fields__)
    assert [name for name in names if f"| `{name}` |" not in text] == []
