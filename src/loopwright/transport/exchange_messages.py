"""Every message of the boundary between a runtime worker and the server's exchange. Never sends one.

Made and read by exchange_client and exchange_server. Calls and payloads travel as JSON, whose integers have no largest
value, inside MessagePack: so one that is malformed still has a number to be answered to, and a payload is never parsed.
"""

from typing import TypeAlias

import msgspec

from loopwright.core.errors import ErrorInfo
from loopwright.core.exchange import SharedCall
from loopwright.core.ids import RunId, TenantId


class Message(msgspec.Struct, frozen=True, array_like=True):
    """What every message has in common: an array that starts with its tag. `member` and `request` are the client's."""


class Hello(Message, frozen=True, tag="hello"):
    """The first message of a client. Answered with Welcome."""


class Join(Message, frozen=True, tag="join"):
    member: int
    run: RunId
    tenant: TenantId
    max_state_bytes: int


class Ask(Message, frozen=True, tag="ask"):
    """Answered with Answer or AskFailed, unless it was given up."""

    member: int
    request: int
    call: bytes


class GiveUp(Message, frozen=True, tag="give_up"):
    """Nobody waits for the answer any more."""

    member: int
    request: int


class Leave(Message, frozen=True, tag="leave"):
    member: int


class Goodbye(Message, frozen=True, tag="goodbye"):
    """The last message of a client: its members leave."""


class Welcome(Message, frozen=True, tag="welcome"):
    pass


class Answer(Message, frozen=True, tag="answer"):
    request: int
    payload: bytes


class AskFailed(Message, frozen=True, tag="failed"):
    request: int
    error: ErrorInfo


ToExchange: TypeAlias = Hello | Join | Ask | GiveUp | Leave | Goodbye
FromExchange: TypeAlias = Welcome | Answer | AskFailed

encode = msgspec.msgpack.Encoder().encode
decode_to_exchange = msgspec.msgpack.Decoder(ToExchange).decode
decode_from_exchange = msgspec.msgpack.Decoder(FromExchange).decode
encode_json = msgspec.json.Encoder().encode
decode_call = msgspec.json.Decoder(SharedCall).decode
