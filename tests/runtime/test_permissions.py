"""Which hosts a program may reach."""

import pytest

from loopwright.core.errors import PermissionDenied
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
