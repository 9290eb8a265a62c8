"""What is kept of responses: bounded by number, size and time, each tenant's apart."""

import pytest

from loopwright.core.clock import FakeClock
from loopwright.core.errors import NotFound
from loopwright.core.ids import TenantId
from loopwright.server.response_limits import ResponsesConfig
from loopwright.server.response_store import KeptResponse, ResponseStore

A, B = TenantId("a"), TenantId("b")


def kept(name: str, num_bytes: int = 10) -> KeptResponse:
    return KeptResponse({"id": name, "text": "x" * num_bytes}, (), ())


class Rig:
    def __init__(self, **limits: float) -> None:
        self.clock = FakeClock(0)
        self.store = ResponseStore(self.clock, ResponsesConfig(**limits))  # type: ignore[arg-type]

    def names(self, tenant: TenantId) -> str:
        """Those of "abcdef" that the tenant has."""
        self.store.check_integrity()
        return "".join(name for name in "abcdef" if self.has(tenant, name))

    def has(self, tenant: TenantId, name: str) -> bool:
        try:
            return self.store.get(tenant, name).response["id"] == name
        except NotFound:
            return False


def test_a_response_is_there_for_its_tenant_alone() -> None:
    rig = Rig()
    rig.store.put(A, kept("a"))
    assert (rig.names(A), rig.names(B)) == ("a", "")
    with pytest.raises(NotFound):
        rig.store.delete(B, "a")
    rig.store.delete(A, "a")
    assert (rig.names(A), rig.store.num_responses, rig.store.num_bytes) == ("", 0, 0)


def test_beyond_the_number_the_oldest_goes() -> None:
    rig = Rig(max_responses=2)
    for name in "abc":
        rig.store.put(A, kept(name))
    assert rig.names(A) == "bc"


def test_beyond_the_size_the_oldest_of_the_tenant_that_has_most_goes() -> None:
    rig = Rig(max_bytes=450)
    rig.store.put(B, kept("a", 100))
    for name in "bcd":
        rig.store.put(A, kept(name, 100))
    assert (rig.names(A), rig.names(B)) == ("cd", "a")


def test_what_is_larger_than_all_may_be_is_not_kept() -> None:
    rig = Rig(max_bytes=100)
    rig.store.put(A, kept("a", 10))
    rig.store.put(B, kept("b", 1000))
    assert (rig.names(A), rig.names(B)) == ("a", "")


def test_what_is_old_is_forgotten() -> None:
    rig = Rig(ttl_s=10)
    rig.store.put(A, kept("a"))
    rig.clock.advance(6)
    rig.store.put(A, kept("b"))
    rig.clock.advance(5)
    assert rig.names(A) == "b"
    rig.clock.advance(5)
    assert (rig.names(A), rig.store.num_bytes) == ("", 0)


def test_none_are_kept_where_none_may_be() -> None:
    rig = Rig(max_responses=0)
    rig.store.put(A, kept("a"))
    assert rig.names(A) == ""


def test_one_that_is_put_again_is_there_once() -> None:
    rig = Rig()
    rig.store.put(A, kept("a", 10))
    rig.store.put(A, kept("a", 20))
    assert (rig.names(A), rig.store.num_responses) == ("a", 1)
