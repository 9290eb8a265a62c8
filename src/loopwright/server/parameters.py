"""What becomes of every parameter of the OpenAI routes: honoured, inert or refused, each with what is to be said of it.

The one table of this: requests are read by it, docs/openai.md is written from it. Never reads a request.
"""

from collections.abc import Mapping

HONOURED: Mapping[str, str] = {
    "messages": "of the roles system, developer (the same), user, assistant and tool; content as text or parts of "
    "text. A `name` is for programs: no template shows it to a model. `reasoning_content` that comes back is "
    "taken and not shown again",
    "prompt": "a text, token ids, or a list of either; ids run as they are, a text begins as a context begins",
    "model": "a model of /v1/models, or `program:NAME` for a deployed program",
    "stream": "server-sent events; what is ready together comes as one chunk",
    "stream_options": "`include_usage`: a last chunk with the usage and no choices; obfuscation may only be false",
    "n": "up to 128; all share the run of the prompt. Choice 0 is what `n` 1 would give",
    "best_of": "up to 20 candidates, of which the `n` with the highest log-probability a token are given; not streamed",
    "max_tokens": "of the answer; a completion has 16 without it, a chat as many as the context holds",
    "max_completion_tokens": "the same under its newer name",
    "temperature": "0 takes the most probable token, the lowest id on a tie; 1 without it",
    "top_p": "docs/sampling.md says how, and in which order with the others",
    "presence_penalty": "counts what the answer has, not the prompt",
    "frequency_penalty": "counts what the answer has, not the prompt",
    "logit_bias": "by token id",
    "seed": "from 0 to 2^62: the same request gives the same answer, whatever else runs; choice i has draws of its own",
    "stop": "up to 16; the text ends before the first that is complete. `stop_reason` names it",
    "logprobs": "of a chat true, of a completion how many of the most probable to show, up to 20; tokens that a stop "
    "takes away have none",
    "top_logprobs": "up to 20, with `logprobs`",
    "response_format": "`text`, `json_object` or `json_schema`; a schema is enforced, strict or not, or refused with a "
    "JSON pointer: docs/grammars.md",
    "echo": "the prompt comes before the answer, with its log-probabilities if `logprobs` is there; with `max_tokens` "
    "1, a token that is the model's end has one too, as harnesses expect that score prompts so",
    "tools": "functions that the model may call, up to 256; its calls are held to their names, and to their schemas",
    "tool_choice": "`none`, `auto`, `required` (a turn is calls alone, at least one), a function, or `allowed_tools`",
    "parallel_tool_calls": "false ends the turn with its first call",
    "functions": "the older name of `tools`; a call is told as `function_call`, one a turn, and its result a "
    "message of the role function with its name",
    "function_call": "the older name of `tool_choice`: `none`, `auto` or a function",
    "reasoning_effort": "where the model's chat template reads it; `none` also where that reads `enable_thinking`",
    "enable_thinking": "where the chat template reads it: whether the model thinks before it answers",
    "chat_template_kwargs": "what else the chat template reads; a name that it does not read is refused",
    "continue_final_message": "the answer goes on with what the last message says, which is the assistant's, and has "
    "only what is new; no thoughts are told apart, and a constraint is of what is new",
    "add_generation_prompt": "false: the prompt ends where the messages do, and the model opens the next turn itself",
    "top_k": "0 is off",
    "min_p": "0 is off",
    "repetition_penalty": "1 is off; counts the prompt too",
    "stop_token_ids": "end the answer, beside the model's own; `stop_reason` is the id",
    "ignore_eos": "the answer goes on past the model's own end",
    "logprob_kind": "`raw` (the model's own distribution) or `processed` (the one that was drawn from); said again "
    "beside the log-probabilities",
    "prompt_logprobs": "of the prompt's tokens, with so many of the most probable, by id; always raw",
    "return_token_ids": "`prompt_token_ids`, and `token_ids` with all that was sampled, what a stop takes included",
    "truncate_prompt_tokens": "keeps so many of the prompt's last tokens; without it one that is too long is refused",
    "guided_json": "a JSON schema that the text is held to",
    "guided_regex": "a regular expression that the whole text matches",
    "guided_choice": "texts, one of which the answer will be",
    "guided_grammar": "a grammar as Lark's",
}

INERT: Mapping[str, str] = {
    "user": "who asks makes no difference",
    "metadata": "nothing is kept; a program with a parameter `metadata` gets it",
    "prompt_cache_key": "prompts share what is cached by what they are, not by a key",
    "safety_identifier": "who asks makes no difference",
    "service_tier": "there is one tier",
    "store": "a chat completion is not kept",
}

REFUSED: Mapping[str, str] = {
    "modalities": "other than text",
    "audio": "text only",
    "moderation": "no moderation",
    "prediction": "no predicted outputs",
    "prompt_cache_options": "nothing to set",
    "prompt_cache_retention": "a cached prefix stays while there is room",
    "verbosity": "other than medium: the model decides",
    "web_search_options": "no search",
    "suffix": "no text in the middle",
}
"""Refused but for null and for values that ask for nothing."""
