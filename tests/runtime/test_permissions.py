"""Which hosts, channels and stores a program may reach."""

from ipaddress import ip_address

import pytest

from loopwright.core.errors import PermissionDenied, ProgramRejected
from loopwright.runtime.addresses import canonical_host, reach
from loopwright.runtime.permissions import Permissions


@pytest.mark.parametrize(
    ("pattern", "host", "port", "is_permitted"),
    [
        ("api.example.org", "api.example.org", 443, True),
        ("API.Example.org", "api.example.org", 80, True),
        ("api.example.org.", "api.example.org", 80, True),
        ("localhost:*", "localhost", 1, True),
        ("169.254.169.254:*", "169.254.169.254", 80, False),
        ("[fe80::1]:*", "fe80::1", 80, False),
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
    "pattern",
    ["*", "*:*", "*.0.0.1", "0x7f.1", "2130706433", "*.", "a b", "a/b", "a:0", "a:70000", "http://a", "*.1", "", "a.*"],
)
def test_what_is_no_host_pattern_is_refused_when_the_program_is_read(pattern: str) -> None:
    with pytest.raises(ProgramRejected) as caught:
        Permissions(http=(pattern,))
    assert caught.value.field == "permissions.http"


@pytest.mark.parametrize(
    ("host", "found", "is_permitted"),
    [
        ("api.example.org", "93.184.215.14", True),
        ("api.example.org", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("api.example.org", "127.0.0.1", False),
        ("api.example.org", "192.168.1.1", False),
        ("api.example.org", "100.64.0.1", False),
        ("api.example.org", "::ffff:10.0.0.1", False),
        ("api.example.org", "not an address", False),
        ("inner.example.org", "10.1.2.3", True),
        ("inner.example.org", "::ffff:10.1.2.3", True),
        ("localhost", "127.0.0.1", True),
        ("localhost", "10.1.2.4", False),
        ("127.0.0.1", "127.0.0.1", True),
    ],
)
def test_a_name_stands_for_public_addresses_and_for_those_listed_themselves(
    host: str, found: str, is_permitted: bool
) -> None:
    permissions = Permissions(http=("*.example.org:*", "10.1.2.3:443", "localhost:*", "127.0.0.1:*"))
    if host == "api.example.org" and found == "127.0.0.1":
        permissions = Permissions(http=("*.example.org:*",))
    if is_permitted:
        permissions.check_address(host, 443, found)
    else:
        with pytest.raises(PermissionDenied):
            permissions.check_address(host, 443, found)


@pytest.mark.parametrize(
    ("spelling", "host"),
    [
        ("Example.ORG.", "example.org"),
        ("0x7f.1", "127.0.0.1"),
        ("0X7F000001", "127.0.0.1"),
        ("017700000001", "127.0.0.1"),
        ("10.0x10", "10.0.0.16"),
        ("::FFFF:7f00:1", "127.0.0.1"),
        ("0:0::1", "::1"),
    ],
)
def test_a_host_has_one_spelling(spelling: str, host: str) -> None:
    assert canonical_host(spelling) == host


@pytest.mark.parametrize("text", ["", ".", "a..b", "-a", "a b", "1.2.3.4.5", "08.1", "256.1.1.1", "::1%lo"])
def test_what_is_neither_name_nor_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        canonical_host(text)


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("8.8.8.8", "public"),
        ("2001:4860:4860::8888", "public"),
        ("127.8.8.8", "listed"),
        ("172.16.0.1", "listed"),
        ("fc00::1", "listed"),
        ("::1", "listed"),
        ("64:ff9b::8.8.8.8", "public"),
        ("64:ff9b::10.0.0.1", "listed"),
        ("64:ff9b::169.254.169.254", "never"),
        ("2002:a9fe:a9fe::", "never"),
        ("2002:7f00:1::", "listed"),
        ("::ffff:169.254.169.254", "never"),
        ("::169.254.169.254", "never"),
        ("2001:0:1::5601:5601", "never"),  # Teredo: the address is written inverted
        ("169.254.0.1", "never"),
        ("255.255.255.255", "never"),
        ("224.0.0.1", "never"),
        ("0.0.0.0", "never"),
        ("::", "never"),
        ("fd00:ec2::254", "never"),
    ],
)
def test_addresses_are_public_or_must_be_listed_or_are_out_of_bounds(address: str, kind: str) -> None:
    assert reach(ip_address(address)) == kind


def test_a_tool_is_permitted_by_its_name_or_with_all_of_its_server() -> None:
    permissions = Permissions(tools=("weather", "calendar.*"))
    for name in ("weather", "calendar.add"):
        permissions.check_tool(name)
    for name in ("weather2", "calendar", "calendars.add", "weather.x"):
        with pytest.raises(PermissionDenied) as caught:
            permissions.check_tool(name)
        assert f'permissions = {{ tools = ["weather", "calendar.*", "{name}"] }}' in caught.value.hint


@pytest.mark.parametrize("name", ["*", "", "*.add", "calendar.*.*", "a b", "weather*"])
def test_what_names_no_tool_is_refused_when_the_program_is_read(name: str) -> None:
    with pytest.raises(ProgramRejected) as caught:
        Permissions(tools=(name,))
    assert caught.value.field == "permissions.tools"


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


def test_the_line_in_a_hint_has_what_was_permitted_before() -> None:
    with pytest.raises(PermissionDenied) as caught:
        Permissions(http=("a.example",), state=("notes",)).check_store("other")
    assert caught.value.hint == (
        'write in the program\'s metadata: permissions = { http = ["a.example"], state = ["notes", "other"] }'
    )
    with pytest.raises(PermissionDenied) as caught:
        Permissions().check_child("helper")
    assert caught.value.hint == 'add to the program\'s metadata: permissions = { children = ["helper"] }'
