"""The programs that the server brings along: what an OpenAI request runs. They see only the sdk, like any program, and
`choices`, which two of them share.

They run in the native sandbox: they are ours, and cost no launch.
"""

from types import ModuleType

from loopwright.runtime.builtin import chat, completion, detokenize, tokenize

BUILTIN_PROGRAMS: dict[str, ModuleType] = {
    "chat": chat, "completion": completion, "tokenize": tokenize, "detokenize": detokenize,
}  # fmt: skip
