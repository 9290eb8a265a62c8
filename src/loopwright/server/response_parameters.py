"""What becomes of every parameter of /v1/responses: honoured, inert or refused, each with what is to be said of it.

The one table of this: requests are read by it, docs/responses.md is written from it. Never reads a request.
"""

from collections.abc import Mapping

from loopwright.server.parameters import HONOURED

_AS_IN_A_CHAT = (
    "model", "temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop", "top_k",
    "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos", "logprob_kind", "truncate_prompt_tokens",
    "enable_thinking", "chat_template_kwargs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
)  # fmt: skip

RESPONSE_HONOURED: Mapping[str, str] = {
    "input": "a text, or items: messages of text, `function_call`, `function_call_output`, `reasoning` (kept, but not "
    "shown to the model again) and `item_reference`",
    "instructions": "a system message before all else; of this request alone, not of those that go on from it",
    "previous_response_id": "goes on behind the input and the output of a response that was kept",
    "store": "true without it: the response is kept, see below",
    "background": "true: the answer comes at once with the status `in_progress`, and the response is made whatever its "
    "client does; see below",
    "stream": "server-sent events, each with its number; what is ready together comes as one delta",
    "stream_options": "obfuscation may only be false",
    "max_output_tokens": "from 1, thoughts included; as many as the context holds without it",
    "text": "`format`: `text`, `json_object` or `json_schema`, which is enforced, strict or not; no `verbosity`",
    "reasoning": "`effort`, where the chat template reads it; `none` also where that reads `enable_thinking`. No "
    "`summary`: thoughts are told as they are",
    "include": "`message.output_text.logprobs`; `reasoning.encrypted_content` asks for nothing, as thoughts are in "
    "their items as text; what concerns hosted tools asks for nothing either",
    "top_logprobs": "up to 20, with `include` of the log-probabilities",
    "tools": "functions; hosted tools are refused by their type",
    "tool_choice": "`none`, `auto`, `required`, a function by name, or `allowed_tools`",
    "parallel_tool_calls": "false is one call at the most",
    "truncation": "`auto` leaves out the oldest messages until the prompt and `max_output_tokens` fit (a quarter of "
    "the context without it); what the system says stays. Of a model, not of a program. Counts leave nothing out",
    "metadata": "kept with the response and told again",
    **{name: HONOURED[name] for name in _AS_IN_A_CHAT},
}

RESPONSE_INERT: Mapping[str, str] = {
    "user": "who asks makes no difference",
    "safety_identifier": "who asks makes no difference",
    "prompt_cache_key": "prompts share what is cached by what they are, not by a key",
    "service_tier": "there is one tier",
    "max_tool_calls": "counts calls of hosted tools, and there are none",
}

RESPONSE_REFUSED: Mapping[str, str] = {
    "background_options": "one in the background is made as soon as any other",
    "conversation": "no conversations; `previous_response_id` goes on from a response",
    "context_management": "nothing is compacted",
    "prompt": "no prompt templates",
    "prompt_cache_options": "nothing to set",
    "prompt_cache_retention": "a cached prefix stays while there is room",
    "moderation": "no moderation",
    "access_programs": "none",
    "image": "text only",
}
"""Refused but for null."""
