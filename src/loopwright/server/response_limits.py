"""The section of the configuration about what is kept of responses. Never keeps one. The store obeys it."""

from typing import Annotated

import msgspec
from msgspec import Meta


class ResponsesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept of /v1/responses."""

    max_responses: Annotated[int, Meta(ge=0, description="how many are kept; 0: none")] = 10_000
    max_bytes: Annotated[int, Meta(ge=0, description="of all that are kept, with what they go on from")] = 256 << 20
    ttl_s: Annotated[float, Meta(gt=0, description="how long one is kept, in seconds")] = 86_400.0
