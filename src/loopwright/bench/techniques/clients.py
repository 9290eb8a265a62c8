"""Each technique as a client does it: the loop here, every generation a request. Never measures. Used by the driver.

A function has the parameters of the program of its name in `programs/`, and spends the same tokens. It does whatever a
client can do to be fast: what is independent is sent at once, several answers to one prompt and several prompts are one
request. What a client cannot do over the OpenAI routes at all is done in the nearest way, which its docstring says.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from loopwright.bench.techniques.endpoint import Endpoint, Message, assistant_says, system_says, user_says

ENDS = ("<|im_end|>", "<|endoftext|>", "<|eos|>", "")
"""Texts of tokens that end a turn, which beam search passes over."""


async def completion(api: Endpoint, number: str, max_tokens: int) -> str:
    return await api.chat([user_says(f"Tell me about the number {number}.")], max_tokens)


async def prefix_tree(api: Endpoint, number: str, parts: list[list[str]], max_tokens: int) -> list[str]:
    """All leaves by one request."""
    prompts = [f"{number}. "]
    for level in parts:
        prompts = [prompt + part for prompt in prompts for part in level]
    return await api.complete(prompts, max_tokens)


async def tree_of_thought(
    api: Endpoint, number: str, system: str, levels: list[str], branches: int, max_tokens: int
) -> list[list[str]]:
    """The branches of a node by one request."""

    async def grow(messages: list[Message], levels: list[str]) -> list[list[str]]:
        if not levels:
            return [[]]
        asked = [*messages, user_says(levels[0])]
        texts = await api.chats(asked, max_tokens, branches, 0.8)
        below = await asyncio.gather(*(grow([*asked, assistant_says(text)], levels[1:]) for text in texts))
        return [[text, *path] for text, paths in zip(texts, below, strict=True) for path in paths]

    return await grow([system_says(system), user_says(f"What is {number} + 1234567?")], levels)


async def recursion_of_thought(api: Endpoint, number: str, system: str, depth: int, max_tokens: int) -> str:
    async def solve(task: str, depth: int) -> str:
        messages = [system_says(system), user_says(task)]
        text = await api.chat(messages, max_tokens, 0.8)
        if depth == 0:
            return text
        half = len(text) // 2
        answers = await asyncio.gather(solve(text[:half], depth - 1), solve(text[half:], 0))
        joining = user_says(f"The answers are: {answers[0]} and {answers[1]}. What follows?")
        return await api.chat([*messages, assistant_says(text), joining], max_tokens, 0.8)

    return await solve(f"What is {number} times 123?", depth)


async def graph_of_thought(api: Endpoint, number: str, lengths: list[int], levels: int, max_tokens: int) -> list[str]:
    root = user_says(f"Propose something for house {number}.")

    def merge(one: str, other: str) -> asyncio.Task[str]:
        merging = user_says(f"Make one proposal of it and of this: {other}")
        return asyncio.create_task(api.chat([root, assistant_says(one), merging], max_tokens, 0.8))

    running = {asyncio.create_task(api.chat([root], length, 0.8)): 0 for length in lengths}
    waiting: dict[int, str] = {}
    results = []
    while running:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in [one for one in running if one in done]:
            level, text = running.pop(task), task.result()
            if level == levels:
                results.append(text)
            elif level in waiting:
                running[merge(waiting.pop(level), text)] = level + 1
            else:
                waiting[level] = text
    return results


async def skeleton_of_thought(api: Endpoint, number: str, points: int, plan_tokens: int, max_tokens: int) -> list[str]:
    question = user_says(f"How do I care for bicycle {number}?")
    text = await api.chat([question, user_says(f"Name {points} points of the answer.")], plan_tokens)
    size = -(-len(text) // points)
    titles = [text[place * size : (place + 1) * size] for place in range(points)]
    asked = [[question, user_says(f"Write about this point alone: {title}")] for title in titles]
    return await asyncio.gather(*(api.chat(messages, max_tokens) for messages in asked))


async def prefix_cache(api: Endpoint, number: str, system: str, max_tokens: int) -> str:
    """The server's own prefix cache is all that a client has."""
    return await api.chat([system_says(system), user_says(f"{number}: what is this exhibit?")], max_tokens)


async def ebnf(api: Endpoint, number: str, grammar: str, max_tokens: int) -> str:
    return await api.chat_by_grammar([user_says(f"Describe house {number} in JSON.")], max_tokens, grammar)


async def speculative(api: Endpoint, number: str, ngram: int, drafts: int, max_tokens: int) -> str:
    """No route takes guesses: the same tokens, by plain generation."""
    (text,) = await api.complete([f"House {number}. Print 'hello' 100 times: hello hello hello"], max_tokens)
    return text


async def beam(api: Endpoint, number: str, beams: int, max_tokens: int) -> str:
    """All beams of a step by one request, each with its whole text."""
    prompt = f"The best thing about the number {number} is"
    live = [(0.0, "")]
    for _ in range(max_tokens):
        found = await api.next_tokens([prompt + text for _, text in live], 2 * beams)
        options = [
            (value + logprob, text + token)
            for (value, text), tokens in zip(live, found, strict=True)
            for token, logprob in tokens.items()
            if token not in ENDS
        ]
        live = sorted(options, key=lambda one: -one[0])[:beams]
    return live[0][1]


async def attention_sink(api: Endpoint, number: str, window: int, sinks: int, max_tokens: int) -> str:
    """No route takes a window: the same tokens, which see all before them."""
    return await api.chat([user_says(f"House {number}: tell me a long story about it.")], max_tokens)


async def react(api: Endpoint, number: str, system: str, calls: int, tool_s: float, max_tokens: int) -> str:
    messages = [system_says(system), user_says(f"Question {number}: which is the tallest of the towers?")]
    text = ""
    for call in range(calls):
        text = await api.chat(messages, max_tokens)
        await asyncio.sleep(tool_s)
        messages += [assistant_says(text), user_says(f"Observation: tower {call} is {100 + call} m tall.")]
    return text


async def code_act(api: Endpoint, number: str, system: str, codes: list[str], max_tokens: int) -> str:
    """The code runs in the client itself, without any isolation: nothing is cheaper."""
    messages = [system_says(system), user_says(f"What is the sum of the numbers below {number}?")]
    for code in codes:
        text = await api.chat(messages, max_tokens)
        names: dict[str, Any] = {}
        exec(code, names)
        messages += [assistant_says(text), user_says(f"It is {names['result']}.")]
    return await api.chat(messages, max_tokens)


async def swarm(api: Endpoint, number: str, roles: list[str], max_tokens: int) -> str:
    story = f"A story about house {number}."
    for role in roles:
        text = await api.chat([system_says(role), user_says(f"{story}\nWrite the next two sentences.")], max_tokens)
        story = f"{story}\n{text}"
    return story


CLIENTS: dict[str, Callable[..., Awaitable[object]]] = {
    one.__name__: one
    for one in (
        completion, prefix_tree, tree_of_thought, recursion_of_thought, graph_of_thought, skeleton_of_thought,
        prefix_cache, ebnf, speculative, beam, attention_sink, react, code_act, swarm,
    )
}  # fmt: skip
