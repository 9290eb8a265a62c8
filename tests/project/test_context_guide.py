"""docs/context.md names every public method of a context, so that each has its cost in it."""

import re

from repository import read

from loopwright import Context


def test_the_guide_names_every_method_of_a_context():
    named = set(re.findall(r"`(\w+)[`(]", read("docs/context.md")))
    public = {name for name in vars(Context) if not name.startswith("_")}
    assert sorted(public - named) == []
