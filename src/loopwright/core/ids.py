"""The names of things that cross layers. Never carries behaviour. Used by every layer but the sdk.

Names that a program chooses (queues, pages, embeds) are plain integers in the run's own name space;
ids that the server chooses (runs, blocks, slots) are never shown to a program as anything it could forge.
"""

from typing import Annotated, NewType

from msgspec import Meta

RunId = NewType("RunId", str)
TenantId = NewType("TenantId", str)  # who pays, as the server knows it
CallId = NewType("CallId", int)  # the handle that `submit` returned to the program; unique within a run
QueueName = NewType("QueueName", int)  # chosen by the program
PageName = NewType("PageName", int)  # chosen by the program; bound to a block by control
EmbedName = NewType("EmbedName", int)  # chosen by the program; bound to a slot by control
BlockId = NewType("BlockId", int)  # the engine's unit of KV
SlotId = NewType("SlotId", int)  # the engine's unit of embedding storage: one vector and its position

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]  # the vocabulary's; what is beyond it is refused where it is known

ONE_TENANT = TenantId("")  # of a server that tells nobody apart
