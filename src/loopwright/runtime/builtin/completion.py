"""Lets texts or token ids go on. Behind every OpenAI completion."""

# /// program
# limits = { seconds = 3600, max_pages = 65536, max_queues = 1024, max_output_bytes = 268435456 }
# ///

from typing import Any

from loopwright import Context, resources
from loopwright.runtime.builtin.choices import Options, Prompt, answer, prompt_of_ids, truncated


async def main(prompts: list[str | list[int]], options: dict[str, Any] = {}) -> dict[str, Any]:  # noqa: B006
    """`options` are those of `choices.Options`. Ids run as they are; a text gets the model's beginning of a context."""
    asked = Options(**options)

    def prompt(number: int, given: str | list[int]) -> Prompt:
        async def make() -> Context:
            if not isinstance(given, str):
                return await prompt_of_ids(number, truncated(given, asked), asked)
            must_fit = asked.truncate_prompt_tokens is None
            ids = (await resources.tokenize(given, starts_context=True, must_fit=must_fit))["tokens"]
            kept = truncated(ids, asked)
            return await prompt_of_ids(number, kept, asked, given if len(kept) == len(ids) else None)

        return make

    return await answer([prompt(number, given) for number, given in enumerate(prompts)], asked)
