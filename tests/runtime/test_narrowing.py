"""What a child may do is what its metadata and its parent both list: checked by asking all three."""

from itertools import product

import pytest

from loopwright.core.errors import PermissionDenied, ProgramRejected
from loopwright.runtime.narrowing import narrowed
from loopwright.runtime.permissions import Permissions

HOSTS = ("a.org", "x.a.org", "y.x.a.org", "b.org", "127.0.0.1")
PORTS = (80, 443, 8080)
PATTERNS = (
    "a.org",
    "*.a.org",
    "*.x.a.org:*",
    "x.a.org:8080",
    "*.a.org:80",
    "a.org:*",
    "127.0.0.1:*",
    "127.0.0.1",
    "b.org:1",
)


def may_reach(permissions: Permissions, host: str, port: int) -> bool:
    try:
        permissions.check_http(host, port)
    except PermissionDenied:
        return False
    return True


@pytest.mark.parametrize("size", [1, 2])
def test_a_host_may_be_reached_if_both_may_reach_it(size: int) -> None:
    lists = [tuple(one) for one in product(PATTERNS, repeat=size)]
    for ours, theirs in product(lists, lists):
        child, parent = Permissions(http=ours), Permissions(http=theirs)
        both = narrowed(child, parent)
        for host, port in product(HOSTS, PORTS):
            wanted = may_reach(child, host, port) and may_reach(parent, host, port)
            assert may_reach(both, host, port) == wanted, (ours, theirs, both.http, host, port)


def test_names_and_beginnings_of_names() -> None:
    child = Permissions(children=("@self", "one", "two"), channels=("room/*", "jobs", "k*"), state=("notes",))
    parent = Permissions(children=("two", "@self", "three"), channels=("room/a/*", "jo*", "*"))
    both = narrowed(child, parent)
    assert set(both.children) == {"@self", "two"}
    assert set(both.channels) == {"room/a/*", "room/*", "jobs", "k*"}
    assert both.state == ()


def test_an_address_of_version_6_stays_one() -> None:
    assert narrowed(Permissions(http=("[::1]:*",)), Permissions(http=("[::1]:8080",))).http == ("[::1]:8080",)


@pytest.mark.parametrize("name", ["@other", "UPPER", "", "a/b", "*"])
def test_what_names_no_program_is_refused(name: str) -> None:
    with pytest.raises(ProgramRejected, match=r"permissions\.children"):
        Permissions(children=(name,))
