"""Keys of the configuration: each is one tenant's, and what could let somebody in by mistake is refused."""

import pytest
from starlette.requests import HTTPConnection

from loopwright.compose.tenants import tenants_of
from loopwright.core.errors import BadRequest, Unauthenticated
from loopwright.core.ids import ONE_TENANT


def connection(key: str) -> HTTPConnection:
    headers = [(b"authorization", f"Bearer {key}".encode()), (b"host", b"localhost")]
    return HTTPConnection({"type": "http", "path": "/v1/models", "headers": headers, "query_string": b""})


def test_a_key_is_its_tenant_s_also_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_ANN", "secret")
    tenant_of = tenants_of({"ann": "${KEY_OF_ANN}", "bob": "other"})
    assert [tenant_of(connection(key)) for key in ("secret", "other")] == ["ann", "bob"]
    with pytest.raises(Unauthenticated):
        tenant_of(connection("${KEY_OF_ANN}"))


def test_without_keys_everybody_is_served() -> None:
    assert tenants_of({})(connection("anything")) == ONE_TENANT


@pytest.mark.parametrize(
    ("keys", "words"),
    [({"ann": ""}, "'ann' is empty"), ({"a": "x", "b": "x"}, "same key"), ({"a": "${NOT_SET}"}, "NOT_SET")],
)
def test_keys_that_would_let_in_the_wrong_one_are_refused(keys: dict[str, str], words: str) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        tenants_of(keys)
    assert caught.value.field == "server.keys"
