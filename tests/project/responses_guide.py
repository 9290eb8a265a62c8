"""The prose of docs/responses.md, around the table that `openai_reference` writes."""

BEFORE = """# Responses

NOTE

`client.responses.create`, `.stream` and `.parse` of OpenAI's clients. A response is made by the run that the same chat
completion would be ([openai.md](openai.md)), so all that is said there of models, programs, constraints, tools, errors
and slow clients holds here; only the form is another.

| route | what it gives |
|---|---|
| `POST /v1/responses` | a response, whole or as events |
| `GET /v1/responses/{id}` | one that was kept; with `stream=true` the events of one in the background |
| `GET /v1/responses/{id}/input_items` | what it was made from, without what it went on from; in pages |
| `DELETE /v1/responses/{id}` | forgets it; those that went on from it stay |
| `POST /v1/responses/{id}/cancel` | ends one that is being made in the background |
| `POST /v1/responses/input_tokens` | how many tokens the input would have; of a model, not of a program |

## Parameters

A parameter is honoured, inert, or refused with an error that names it in `param`; an unknown one is refused too. Null
is the same as leaving it out. Those with a star are extensions: OpenAI's own servers do not know them here.
"""

AFTER = """## Items

The input is a text or a list. A message has the role user, assistant, system or developer and content of text; calls
and results of functions are items of their own, and a call belongs to the assistant's message before it. The output
has a `reasoning` item for what the model thought, a `message` for text and a `function_call` for each call, in the
order in which they came. Whatever was given out can be sent as input again, whole or as an `item_reference`; an image
or a file is refused, and so is the item of a hosted tool.

## Events

`response.created` and `response.in_progress` come before the model has run, as soon as the prompt is known to fit; an
error before that is an HTTP status. With a form of the text, a strict tool or a program they come with the first text.
Each item is added, its part is added, grows by deltas, is done, and so is the item. The last event is
`response.completed`, `response.incomplete` (`incomplete_details.reason` is `max_output_tokens`) or `response.failed`,
and the response in it is what a request without `stream` would have got. `sequence_number` counts from 0. There is no
`[DONE]`.

## What is kept

A response with its input is kept in memory unless `store` is false, for the tenant that asked, until it is deleted,
`ttl_s` have passed, or there is no room: `[server.responses]` in [configuration.md](configuration.md). Then the oldest
of the tenant that keeps most goes first. `previous_response_id` needs only the last one, which holds all that went
before; instructions are not carried on. One that failed in mid-stream is kept with its status; one whose client went
away is cancelled and not kept. A restart forgets all of them. `include` of the routes that tell of one changes nothing:
what was asked for when it was made is there.

## In the background

With `background` true the run goes on by itself, and `store` may not be false. `GET` says how far it is: `in_progress`
without output, or the response as it ended (`cancelled`, too). `stream=true`, then or later, gives all its events, or
those behind `starting_after`; here nothing is joined that came together, so that an event has the same number each
time. A run is remembered as long as `GET /v1/runs` has it; asked for after that, a response that nobody had asked for
since its end is gone. To delete one that is being made ends it.
"""
