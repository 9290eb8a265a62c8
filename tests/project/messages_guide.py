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
`is_error` changes nothing, as the content says it. A `tool_use_id` that no message before has called is refused. A last
message of the assistant is gone on with, and the answer has only what is new; it cannot end with white space, and goes
together neither with `thinking` nor with `output_config.format`. An image, a document and whatever belongs to a tool of
Anthropic's are refused.

The answer has a `thinking` block for what the model thought (with an empty signature), a `text` block for text and a
`tool_use` block for each call, in the order in which they came. `input` of a call that was cut is empty.

`stop_reason` is `end_turn`, `max_tokens`, `stop_sequence` (and `stop_sequence` is it) or `tool_use`. In `usage`,
`input_tokens` are those that ran and `cache_read_input_tokens` those whose KV was there; the prompt is both together.

## Events

`message_start`, whose usage has the tokens of the prompt (which of them were cached, the end says), and a `ping` come
before the model has run, as soon as the prompt is known to fit; an error before that is an HTTP status. With
`output_config.format` or a strict tool they come with the first text, since until then it may turn out that what is
asked for cannot be held, and so they do of a program. Each block starts, grows by deltas and stops; `message_delta` has
the reason and the whole usage, and `message_stop` is the last. An error after `message_start` is an `error` event, and
the last.

## Errors

`{"type": "error", "error": {"type", "message"}, "request_id"}` on these routes; the id is in the header `request-id`,
too. `x-should-retry` says whether sending it again makes sense.
"""
