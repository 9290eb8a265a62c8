"""What calls have in common. Never holds one.

Extended by `calls`, which control answers, and by `host_calls` and the modules that it unites, which the runtime does.
"""

import msgspec


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", kw_only=True):
    """What every call of control has in common. With `answer` false nobody waits for the answer, and none is sent."""

    answer: bool = True


class HostCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", kw_only=True):
    """What every call of the runtime has in common. With `answer` false none is sent."""

    answer: bool = True
