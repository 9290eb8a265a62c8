"""Writes docs/openai.md: the routes of OpenAI's clients, and what becomes of every parameter.

Run by `make reference`; a test compares the file with what this would write.
"""

from typing import Any

from openai_guide import AFTER, BEFORE
from repository import ROOT

from loopwright.server.chat_request import ChatBody
from loopwright.server.completion_request import CompletionBody
from loopwright.server.parameters import HONOURED, INERT, REFUSED

OPENAI_REFERENCE = ROOT / "docs" / "openai.md"
NOTE = "<!-- Written by `make reference` from the source; do not edit. -->"

# Those that no OpenAI documentation has.
EXTENSIONS = (
    "top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos", "logprob_kind", "prompt_logprobs",
    "return_token_ids", "truncate_prompt_tokens", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    "enable_thinking", "chat_template_kwargs",
)  # fmt: skip


def openai_reference() -> str:
    """What stands in docs/openai.md."""
    sections = [
        ("Honoured", HONOURED, "Those with a star are extensions: OpenAI's own servers do not know them."),
        ("Inert", INERT, "Accepted, and without any effect."),
        ("Refused", REFUSED, "Refused by name, but for null and for values that ask for nothing."),
    ]
    tables = [f"### {title}\n\n{says}\n\n{_table(named)}\n" for title, named, says in sections]
    return f"{BEFORE.replace('NOTE', NOTE)}\n" + "\n".join(tables) + f"\n{AFTER}"


def _table(named: Any) -> str:
    rows = ["| parameter | chat | completion | |", "|---|---|---|---|"]
    for name, says in named.items():
        star = "\\*" if name in EXTENSIONS else ""
        marks = ["✓" if name in body.__struct_fields__ else "" for body in (ChatBody, CompletionBody)]
        rows.append(f"| `{name}`{star} | {marks[0]} | {marks[1]} | {says} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    OPENAI_REFERENCE.write_text(openai_reference(), encoding="utf-8")
