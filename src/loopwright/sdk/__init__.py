"""What a program imports: contexts, resources, HTTP, output and errors. Pure Python without dependencies.

The same folder runs in the Wasm sandbox and natively.
"""

from loopwright.sdk import argument_check, children, errors, http, resources, sandbox, tensor, tools
from loopwright.sdk.children import Child, ChildFailed, parent_context, spawn
from loopwright.sdk.context import Context
from loopwright.sdk.conversation import receive
from loopwright.sdk.distribution import Distribution, draw
from loopwright.sdk.errors import (
    BadRequest,
    BoundaryHit,
    ContextTooLong,
    DeadlineExceeded,
    LimitExceeded,
    LoopwrightError,
    ModelLacksTrait,
    NotFound,
    OutOfPages,
    PermissionDenied,
    ToolFailed,
    Untraceable,
)
from loopwright.sdk.grammar import Grammar, choice, json_object, json_schema, lark, regex
from loopwright.sdk.handover import export_context, import_context, unexport_context
from loopwright.sdk.messaging import MessagesLost, broadcast, pull, push, subscribe
from loopwright.sdk.model import Model, detokenize, model, models, prompt_template, tokenize, vocabulary
from loopwright.sdk.output import Show, emit, emit_text, emit_tool_call, log
from loopwright.sdk.resources import Queue
from loopwright.sdk.run_facts import RunFacts, run_facts
from loopwright.sdk.speculation import Speculated, speculate
from loopwright.sdk.store import Store
from loopwright.sdk.tools import Tool, client_tool, tool
from loopwright.sdk.turn import BrokenCall, Chunk, Score, ToolCall, Turn, Verified
from loopwright.sdk.views import Approximate, Cause, Exact
from loopwright.sdk.watching import Watched, WatchedToken

argument_check.prepare()

__all__ = [
    "Approximate",
    "BadRequest",
    "BoundaryHit",
    "BrokenCall",
    "Cause",
    "Child",
    "ChildFailed",
    "Chunk",
    "Context",
    "ContextTooLong",
    "DeadlineExceeded",
    "Distribution",
    "Exact",
    "Grammar",
    "LimitExceeded",
    "LoopwrightError",
    "MessagesLost",
    "Model",
    "ModelLacksTrait",
    "NotFound",
    "OutOfPages",
    "PermissionDenied",
    "Queue",
    "RunFacts",
    "Score",
    "Show",
    "Speculated",
    "Store",
    "Tool",
    "ToolCall",
    "ToolFailed",
    "Turn",
    "Untraceable",
    "Verified",
    "Watched",
    "WatchedToken",
    "broadcast",
    "children",
    "choice",
    "client_tool",
    "detokenize",
    "draw",
    "emit",
    "emit_text",
    "emit_tool_call",
    "errors",
    "export_context",
    "http",
    "import_context",
    "json_object",
    "json_schema",
    "lark",
    "log",
    "model",
    "models",
    "parent_context",
    "prompt_template",
    "pull",
    "push",
    "receive",
    "regex",
    "resources",
    "run_facts",
    "sandbox",
    "spawn",
    "speculate",
    "subscribe",
    "tensor",
    "tokenize",
    "tool",
    "tools",
    "unexport_context",
    "vocabulary",
]
