"""The prose of docs/messages.md, around the table that `openai_reference` writes."""

BEFORE = """# Anthropic's clients

NOTE

Anthropic's clients work with `base_url` at the server itself, without `/v1`. A message is made by the run that the same
chat completion would be ([openai.md](openai.md)), so all that is said there of models, programs, constraints, tools and
slow clients holds here; only the form is another.

| route | what it gives |
|---|---|
| `POST /v1/messages` | the next message, whole or as events |
| `POST /v1/messages/count_tokens` | how many tokens the prompt of the same body has; of a model, not of a program |

`anthropic-version` may be `2023-06-01` or `2026-10-21`, or be left out. `anthropic-beta` is inert: what it would open
is refused in the body, by name.

## Parameters

A parameter is honoured, inert, or refused with an error whose message begins with its name; an unknown one is refused
too. Null is the same as leaving it out. One with a star is an extension.
"""

AFTER = """## Messages

Results of tools (`tool_result`) become messages of their own, before and between what the user says beside them;
`is_error` changes nothing, as the content says it. A last message of the assistant is refused: an answer that is begun
already is not gone on with. An image, a document and whatever belongs to a tool of Anthropic's are refused.

The answer has a `thinking` block for what the model thought (with an empty signature), a `text` block for text and a
`tool_use` block for each call, in the order in which they came. `input` of a call that was cut is empty.

`stop_reason` is `end_turn`, `max_tokens`, `stop_sequence` (and `stop_sequence` is it) or `tool_use`. In `usage`,
`input_tokens` are those that ran and `cache_read_input_tokens` those whose KV was there; the prompt is both together.

## Events

`message_start` and a `ping` come with the first text; an error before that is an HTTP status. Each block starts, grows
by deltas and stops; `message_delta` has the reason and the whole usage, which is not known before, and `message_stop`
is the last. An error after the first text is an `error` event, and the last.

## Errors

`{"type": "error", "error": {"type", "message"}, "request_id"}` on these routes; the id is in the header `request-id`,
too. `x-should-retry` says whether sending it again makes sense.
"""
