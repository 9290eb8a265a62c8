"""What the runtime's calls have in common. Never holds a call. Extended by `host_calls` and the modules it unites."""

import msgspec


class HostCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", kw_only=True):
    """What every call of the runtime has in common. With `answer` false none is sent."""

    answer: bool = True
