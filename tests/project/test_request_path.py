"""docs/request-path.md walks one request through files and functions that exist."""

import pytest
from repository import ROOT
from request_path import all_defined_names, defined_names, named_by_file, named_files

NAMED = named_by_file()


def test_the_path_goes_through_every_layer_of_a_request():
    layers = [file.partition("/")[0] for file in NAMED]
    assert [layer for layer in ("server", "runtime", "sdk", "control", "engine") if layer not in layers] == []


def test_every_file_of_the_path_exists():
    assert [file for file in named_files() if not (ROOT / "src/loopwright" / file).is_file()] == []


@pytest.mark.parametrize("file", NAMED)
def test_a_section_names_something_of_its_own_file(file: str):
    assert set(NAMED[file]) & defined_names(file)


@pytest.mark.parametrize("file", NAMED)
def test_every_name_of_a_section_is_defined_somewhere(file: str):
    assert sorted(set(NAMED[file]) - all_defined_names()) == []
