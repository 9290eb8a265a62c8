"""Whose requests a server answers, from its configuration. Never sees a request. Used by `loopwright serve`."""

from collections.abc import Mapping

from loopwright.core.errors import BadRequest
from loopwright.core.ids import TenantId
from loopwright.runtime.tool_config import with_environment
from loopwright.server.identity import TenantOf, by_key, everybody

FIELD = "server.keys"


def tenants_of(keys: Mapping[str, str]) -> TenantOf:
    """Of tenants with their keys; without any, everybody is one tenant. Raises BadRequest for a key that is empty, that
    two have, or whose variable is not set."""
    if not keys:
        return everybody
    given = with_environment(keys, FIELD, set())
    for tenant, key in given.items():
        if not key:
            raise BadRequest(f"{FIELD}: the key of {tenant!r} is empty", field=FIELD)
    if len({*given.values()}) < len(given):
        raise BadRequest(f"{FIELD}: two tenants have the same key", hint="give each one of its own", field=FIELD)
    return by_key({key: TenantId(tenant) for tenant, key in given.items()})
