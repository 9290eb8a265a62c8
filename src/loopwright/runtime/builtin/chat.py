"""Answers a chat: messages in, the assistant's next turn out. Behind every OpenAI chat completion."""

# /// program
# limits = { seconds = 3600, max_pages = 65536, max_queues = 1024, max_output_bytes = 268435456 }
# ///

from collections.abc import Sequence
from typing import Any

from loopwright import Context, model, resources
from loopwright.runtime.builtin.choices import Options, answer, prompt_of_ids, truncated
from loopwright.runtime.builtin.fitting import Message, fitting, room


async def main(messages: list[dict[str, Any]], options: dict[str, Any] = {}) -> dict[str, Any]:  # noqa: B006
    """`options` are those of `choices.Options`."""
    asked = Options(**options)
    tools = asked.known_tools

    async def tokens(told: Sequence[Message]) -> list[int]:
        rendered = await resources.render_chat(
            told,
            num_done=0,
            is_open=False,
            add_generation_prompt=asked.opening == "turn",
            continue_final=asked.opening == "last",
            must_fit=not asked.drops_messages and asked.truncate_prompt_tokens is None,
            tools=[one.spec for one in tools],
            options=asked.template,
        )
        return list(rendered["tokens"])

    async def prompt() -> Context:
        told = messages
        if asked.drops_messages:
            told = await fitting(messages, room((await model()).max_context, asked.max_tokens), tokens)
        if asked.needs_prompt_ids or asked.opening != "turn":
            return await prompt_of_ids(0, truncated(await tokens(told), asked), asked)
        ctx = Context(template=asked.template)
        ctx.tell_tools(tools)
        for message in told:
            ctx.message(**message)
        return ctx

    return await answer([prompt], asked)
