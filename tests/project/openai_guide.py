"""The prose of docs/openai.md, around the tables that `openai_reference` writes."""

BEFORE = """# OpenAI's clients

NOTE

Every OpenAI client works with `base_url` at `/v1`. A request is the run of a built-in program, or of a deployed one
with `model="program:NAME"`; there is no other path. What a server describes of itself is at `/openapi.json`.

| route | what it gives |
|---|---|
| `POST /v1/chat/completions` | the next message of a chat, whole or streamed |
| `POST /v1/completions` | how texts or token ids go on |
| `POST /v1/responses`, and what was kept of it | [responses.md](responses.md) |
| `POST /v1/messages`, for Anthropic's clients | [messages.md](messages.md) |
| `POST /v1/chat/completions/render` | the tokens that a chat completion with the same body would run as its prompt |
| `POST /tokenize`, `POST /detokenize` | tokens of a text or a chat, text of tokens |
| `GET /tokenizer_info` | `bos_token`, `eos_token`, `vocab_size`, `model_max_length`, as of vLLM; no template |
| `GET /v1/models`, `GET /v1/models/{model}` | models, and deployed programs as models |
| `GET /health`, `GET /ready` | whether the server lives, and whether it would serve a request now |

## Parameters

A parameter is honoured, inert, or refused with an error that names it in `param`; an unknown one is refused too. Null
is the same as leaving it out.
"""

AFTER = """## Answers

- `usage` counts what really ran: all candidates of `best_of`, a prompt that several choices share once, and of the
  prompt `prompt_tokens_details.cached_tokens` that did not run because their KV was there.
  Of a program as a model it is control's count of the run and of the runs that it started, on every route, streamed or
  not; what the program returns as `usage` replaces none of it. It may say how many of the tokens were thoughts
  (`{"usage": {"completion_tokens_details": {"reasoning_tokens": 3}}}`), which it alone knows. The final event of every
  run says the same as `ran`.
- `system_fingerprint` is a hash of the weights, their quantization, the chat template, the engine and its equality
  class: while it stays, a seeded request has the same answer.
- `finish_reason` is `length` when `max_tokens` or the context ended the text, `tool_calls` when the turn has calls
  and none of them is cut, whatever the choice was, else `stop`; `stop_reason` is the stop
  string or id that did, null for the model's own end.
- A model whose chat template has tags for thoughts (`<think>` and the like) has them in `reasoning_content`, streamed
  and not, and their number in `usage.completion_tokens_details.reasoning_tokens`. A constraint, `stop` and
  log-probabilities are of the answer behind them, whether it thinks or not.
- Log-probabilities cover the tokens whose text is in the answer; `token_ids` cover everything that was sampled. A
  token that is no text by itself is written as `bytes:\\xf0\\x9f`; a control token is written out and has no bytes.
- A stream's chunks join to the whole answer. What is ready together comes as one chunk, so a slow reader gets fewer
  and larger ones; one that reads nothing for `server.stall_s`, 30 seconds, is cut off, and its run
  ends. One that has nothing to say for 15 seconds has a comment (`: alive`), which clients leave out.

## Tools

`tools` are functions; the client executes what is called, and answers each call with a message of the role `tool` and
its `tool_call_id`. What the model is told of them is its chat template's affair, and so is how it writes calls
([tools-while-generating.md](tools-while-generating.md) has the formats).

```python
parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
asked = {
    "model": "SmolLM2-135M-Instruct",
    "temperature": 0,
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": parameters}}],
}
messages = [{"role": "user", "content": "What is the weather in Paris?"}]
message = client.chat.completions.create(messages=messages, tool_choice="required", **asked).choices[0].message
messages.append(message.model_dump(exclude_none=True))
for call in message.tool_calls:
    result = weather(**json.loads(call.function.arguments))  # a function of yours, which returns a text
    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
answer = client.chat.completions.create(messages=messages, tool_choice="none", **asked)
```

- A grammar holds the turn, so a call is complete JSON with the name of a tool that there is. Its arguments are held to
  the tool's schema. With `strict`, a schema that cannot be held is refused with a JSON pointer
  (`tools[0].function.parameters#/properties/age/contains`); without, the arguments are then any object.
- Streamed, `id`, `type` and `name` come first, and the arguments as they are written. Text beside calls is `content`;
  what is only space is none.
- With `response_format` or a `guided_*` field, a turn is calls or an answer in that form, never both; with
  `tool_choice` `required` or a function it is calls, with `none` the answer. A model that writes calls as bare JSON
  (Llama 3) cannot tell a call from an object that is the answer: there the form is refused by its name.
- `stop` counts in `content` alone, never in a call.
- A call that `max_tokens` cuts has the beginning of its arguments, and the reason is `length`. One that is cut before
  its arguments began is text, as the model wrote it.

## Errors

`{"error": {"message", "type", "param", "code"}}` on every route; `param` is the field, for a schema with a JSON
pointer (`response_format.json_schema.schema#/properties/age/type`). A prompt that does not fit is refused with both
numbers (`context_length_exceeded`), and never cut unless `truncate_prompt_tokens` says so. An error after the first
chunk is an event of the same form, and the stream ends without `[DONE]`. `x-should-retry` says whether sending it
again makes sense.

- **400** `bad_request`, `context_length_exceeded`: the request cannot be honoured; `param` says which part.
- **401** `invalid_api_key`, **403** `denied`: no key of this server; another tenant's program.
- **404** `model_not_found`, `bad_request`: no such model, program, run or response.
- **422** `program_error`, `limit`: the program that answers failed, made a call wrongly or one that it may not make, or
  reached a limit of its own. The same request fails again. The message has the program's line, and `param` is empty:
  nothing is wrong with the request.
- **409** `cancelled`, **504** `deadline`: somebody ended the run; its time was over.
- **429** `overloaded`, **503** `limit`, `internal`: no room, no KV page, a part of the server away. Again, after
  `Retry-After`.
- **500** `internal`, **502** `program_error`: a fault of ours; a tool of the server failed.

An error of a run over `/v1/programs/NAME/runs` and `/v1/runs` has the same status where its end is waited for
(`"stream": false`); the body has the run's own code and error, with its traceback. A stream has begun with 200 by then:
its last event has them.

## Programs as models

The program's parameter `messages` (of a completion `prompt`) gets the conversation; without one, its first text
parameter gets the last user message. `tools`, `metadata` and every other parameter of the request go to the parameter
of `main` with that name; one that has no such place is refused, unless it is inert. What the program emits is the
answer as it comes; of one that emits no text, what it returns is. It may have the client call a tool, and take the
result in the next request:

```python
async def main(messages: list, tools: list = []):
    ctx = Context()
    ctx.messages(messages)  # in OpenAI's form, calls and results included
    turn = await ctx.generate(tools=[client_tool(one) for one in tools])
    emit_text(turn.prose)
    for call in turn.tool_calls:
        emit_tool_call(call.name, call.arguments)
```
"""
