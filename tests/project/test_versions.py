"""The pinned versions fit the ranges."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from repository import read

PROJECT = tomllib.loads(read("pyproject.toml"))["project"]
PINS = {
    canonicalize_name(pin.name): next(iter(pin.specifier)).version
    for pin in (
        Requirement(line.partition("#")[0]) for line in read("constraints.txt").splitlines() if line[:1].isalpha()
    )
}
REQUIREMENTS = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]


@pytest.mark.parametrize("text", REQUIREMENTS)
def test_every_direct_dependency_is_pinned_within_its_range(text: str):
    requirement = Requirement(text)
    pin = PINS.get(canonicalize_name(requirement.name))
    assert pin, f"constraints.txt does not pin {requirement.name}"
    assert requirement.specifier.contains(pin), f"{requirement.name}=={pin} is outside {requirement.specifier}"


def test_a_pin_is_one_exact_version():
    lines = [line for line in read("constraints.txt").splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9.]*", line)] == []
