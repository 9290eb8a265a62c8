"""Which hosts, channels and stores a program may reach."""

import pytest

from loopwright.core.errors import PermissionDenied, ProgramRejected
from loopwright.runtime.permissions import Permissions


@pytest.mark.parametrize(
    ("pattern", "host", "port", "is_permitted"),
    [
        ("api.example.org", "api.example.org", 443, True),
        ("api.example.org", "API.Example.ORG", 80, True),
        ("api.example.org", "api.example.org", 8080, False),
        ("api.example.org:8080", "api.example.org", 8080, True),
        ("api.example.org:8080", "api.example.org", 443, False),
        ("127.0.0.1:*", "127.0.0.1", 5555, True),
        ("127.0.0.1:*", "127.0.0.2", 5555, False),
        ("*.example.org", "a.example.org", 443, True),
        ("*.example.org", "a.b.example.org", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "evilexample.org", 443, False),
        ("example.org", "example.org.evil.net", 443, False),
        ("[::1]:*", "::1", 9, True),
        ("[::1]", "::1", 443, True),
    ],
)
def test_a_pattern_covers_exactly_its_hosts_and_ports(pattern: str, host: str, port: int, is_permitted: bool) -> None:
    permissions = Permissions(http=(pattern,))
    if is_permitted:
        permissions.check_http(host, port)
    else:
        with pytest.raises(PermissionDenied):
            permissions.check_http(host, port)


def test_nothing_is_permitted_by_default_and_the_error_names_the_line_to_add() -> None:
    with pytest.raises(PermissionDenied) as caught:
        Permissions().check_http("api.example.org", 443)
    assert 'permissions = { http = ["api.example.org:443"] }' in caught.value.hint


@pytest.mark.parametrize(
    ("pattern", "name", "is_permitted"),
    [
        ("jobs", "jobs", True),
        ("jobs", "jobs2", False),
        ("jobs", "Jobs", False),
        ("room/*", "room/1", True),
        ("room/*", "room/", True),
        ("room/*", "room", False),
        ("*", "anything", True),
        ("a.c", "abc", False),
    ],
)
def test_a_name_is_whole_or_begins_as_the_pattern_does(pattern: str, name: str, is_permitted: bool) -> None:
    for check in (Permissions(channels=(pattern,)).check_channel, Permissions(state=(pattern,)).check_store):
        if is_permitted:
            check(name)
        else:
            with pytest.raises(PermissionDenied, match="permitted: "):
                check(name)
    for check in (Permissions(state=(pattern,)).check_channel, Permissions(channels=(pattern,)).check_store):
        with pytest.raises(PermissionDenied, match="permitted: nothing"):
            check(name)


@pytest.mark.parametrize("pattern", ["", "**", "a*b", "*a"])
def test_what_is_no_name_is_refused_with_the_program(pattern: str) -> None:
    for permission in ("channels", "state"):
        with pytest.raises(ProgramRejected, match=f"permissions.{permission}"):
            Permissions(**{permission: (pattern,)})
