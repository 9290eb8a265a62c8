"""docs/request-path.md walks one request through files and functions that exist."""

import pytest
from repository import ROOT
from request_path import all_defined_names, defined_names, named_by_file

NAMED = named_by_file()


def test_the_path_goes_through_every_layer_of_a_request():
    layers = [file.partition("/")[0] for file in NAMED]
    assert [layer for layer in ("server", "runtime", "sdk", "control", "engine") if layer not in layers] == []


@pytest.mark.parametrize("file", NAMED)
def test_a_file_of_the_path_exists(file: str):
    assert (ROOT / "src/loopwright" / file).is_file()


@pytest.mark.parametrize("file", NAMED)
def test_a_sections_first_name_is_defined_in_its_file(file: str):
    assert NAMED[file], f"the section of {file} names nothing"
    assert NAMED[file][0] in defined_names(file)


@pytest.mark.parametrize("file", NAMED)
def test_every_name_of_a_section_is_defined_somewhere(file: str):
    assert sorted(set(NAMED[file]) - all_defined_names()) == []
