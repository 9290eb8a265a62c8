"""What becomes of every parameter of /v1/messages: honoured, inert or refused, each with what is to be said of it.

The one table of this: requests are read by it, docs/messages.md is written from it. Never reads a request.
"""

from collections.abc import Mapping

MESSAGE_HONOURED: Mapping[str, str] = {
    "model": "a model of /v1/models, or `program:NAME` for a deployed program",
    "messages": "of user, assistant and system; content as text or blocks `text`, `tool_use`, `tool_result`, and "
    "`thinking` (taken, but not shown to the model again)",
    "system": "a text, or blocks of text",
    "max_tokens": "from 1, thoughts included; required. A program gets it, if it has such a parameter",
    "stream": "server-sent events; what is ready together comes as one delta",
    "stop_sequences": "up to 16; the text ends before the first that is complete, and `stop_sequence` names it",
    "temperature": "of either version; from 0 to 1; 0 takes the most probable token; 1 without it",
    "top_p": "of either version; above 0, up to 1",
    "top_k": "of either version; 0 is off",
    "seed": "the same request gives the same answer, whatever else runs",
    "tools": "the client's own; Anthropic's are refused by their type. `strict` is held by a grammar",
    "tool_choice": "`auto`, `any`, `tool` or `none`, with `disable_parallel_tool_use`",
    "thinking": "`enabled`: at most `budget_tokens` of thoughts, of a model whose template has tags for them; "
    "`disabled`: none; `adaptive`, and without it: the model decides. Thoughts are told as they are, so no `display`",
    "output_config": "`format`: `json_schema`, which is enforced; `effort` where the template reads `reasoning_effort`",
}

MESSAGE_INERT: Mapping[str, str] = {
    "metadata": "who asks makes no difference",
    "service_tier": "there is one tier",
    "cache_control": "here and in blocks and tools: prompts share what is cached by what they are",
}

MESSAGE_REFUSED: Mapping[str, str] = {
    "container": "no containers",
    "inference_geo": "there is one place",
    "mcp_servers": "no servers of tools; a program may have some",
    "context_management": "nothing is edited or compacted",
    "compaction": "nothing is compacted",
    "diagnostics": "none",
    "speed": "other than `standard`",
    "output_format": "the older name of `output_config.format`",
    "fallbacks": "no other model answers",
    "fallback_credit_token": "no other model answers",
    "billing_policy": "no billing",
    "thread": "no threads",
    "user_profile_id": "no profiles",
    "workspace_id": "no workspaces",
}
"""Refused but for null and for values that ask for nothing."""

MESSAGE_ASKS_NOTHING: Mapping[str, tuple[object, ...]] = {
    "speed": ("standard",),
    "mcp_servers": ([],),
}
