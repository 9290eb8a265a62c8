"""Writes docs/openai.md, docs/responses.md and docs/messages.md: the routes of clients, and what becomes of parameters.

Run by `make reference`; a test compares the files with what this would write.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import messages_guide
import responses_guide
from openai_guide import AFTER, BEFORE
from repository import ROOT

from loopwright.server.chat_request import ChatBody
from loopwright.server.completion_request import CompletionBody
from loopwright.server.message_parameters import MESSAGE_HONOURED, MESSAGE_INERT, MESSAGE_REFUSED
from loopwright.server.parameters import HONOURED, INERT, REFUSED
from loopwright.server.response_parameters import RESPONSE_HONOURED, RESPONSE_INERT, RESPONSE_REFUSED

OPENAI_REFERENCE = ROOT / "docs" / "openai.md"
RESPONSES_REFERENCE = ROOT / "docs" / "responses.md"
MESSAGES_REFERENCE = ROOT / "docs" / "messages.md"
NOTE = "<!-- Written by `make reference` from the source; do not edit. -->"
STAR = "\\*"

# Those that no OpenAI documentation has.
EXTENSIONS = (
    "top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos", "logprob_kind", "prompt_logprobs",
    "return_token_ids", "truncate_prompt_tokens", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    "enable_thinking", "chat_template_kwargs",
)  # fmt: skip
RESPONSE_EXTENSIONS = (
    *EXTENSIONS, "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop",
)  # fmt: skip


def openai_reference() -> str:
    """What stands in docs/openai.md."""
    sections = [
        (
            "Honoured",
            HONOURED,
            "Those with a star are extensions: OpenAI's own servers do not know them. With openai's "
            'client they go into `extra_body={"top_k": 5}`.',
        ),
        ("Inert", INERT, "Accepted, and without any effect."),
        ("Refused", REFUSED, "Refused by name, but for null and for values that ask for nothing."),
    ]
    tables = [f"### {title}\n\n{says}\n\n{_table(named)}\n" for title, named, says in sections]
    return f"{BEFORE.replace('NOTE', NOTE)}\n" + "\n".join(tables) + f"\n{AFTER}"


def _table(named: Any) -> str:
    rows = ["| parameter | chat | completion | |", "|---|---|---|---|"]
    for name, says in named.items():
        star = STAR if name in EXTENSIONS else ""
        marks = ["✓" if name in body.__struct_fields__ else "" for body in (ChatBody, CompletionBody)]
        rows.append(f"| `{name}`{star} | {marks[0]} | {marks[1]} | {says} |")
    return "\n".join(rows) + "\n"


def responses_reference() -> str:
    """What stands in docs/responses.md."""
    tables = (RESPONSE_HONOURED, RESPONSE_INERT, RESPONSE_REFUSED)
    before, after = responses_guide.BEFORE.replace("NOTE", NOTE), responses_guide.AFTER
    return f"{before}\n{fates(tables, RESPONSE_EXTENSIONS)}\n{after}"


def messages_reference() -> str:
    """What stands in docs/messages.md."""
    tables = (MESSAGE_HONOURED, MESSAGE_INERT, MESSAGE_REFUSED)
    before, after = messages_guide.BEFORE.replace("NOTE", NOTE), messages_guide.AFTER
    return f"{before}\n{fates(tables, ('seed',))}\n{after}"


def fates(tables: Sequence[Mapping[str, str]], extensions: Sequence[str]) -> str:
    """Of one route: what becomes of its parameters, in one table."""
    rows = ["| parameter | | |", "|---|---|---|"]
    for fate, named in zip(("honoured", "inert", "refused"), tables, strict=True):
        rows += [f"| `{name}`{STAR if name in extensions else ''} | {fate} | {says} |" for name, says in named.items()]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    OPENAI_REFERENCE.write_text(openai_reference(), encoding="utf-8")
    RESPONSES_REFERENCE.write_text(responses_reference(), encoding="utf-8")
    MESSAGES_REFERENCE.write_text(messages_reference(), encoding="utf-8")
