"""Random requests of every route and random programs, of all that a request can ask for. Never sends one.

Each is a path and a body. Those with a temperature have a seed, so each has one answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

Asked = tuple[str, dict[str, Any]]

SYSTEMS = ("You are brief.", "You answer in one sentence. You like trains, rivers and old maps, and mention them.", "")
QUESTIONS = (
    "Name three colours.", "What is 17 + 25?", "Tell me a story about a fox and a crow.", "List the planets.",
    "Write some emoji 😀 and accents é à ü.", "Count from one to ten in words.",
)  # fmt: skip
FORMS = (
    {
        "type": "object", "required": ["name", "age"], "additionalProperties": False,
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0}},
    },
    {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
)  # fmt: skip
TOOLS = {
    "weather": {
        "type": "object", "required": ["city"], "additionalProperties": False,
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 5}},
    },
    "add": {
        "type": "object", "required": ["a", "b"], "properties": {"a": {"type": "number"}, "b": {"type": "number"}}
    },
}  # fmt: skip
WAYS = ("plain", "speculate", "watch", "fork", "look", "truncate", "hide", "window", "score", "sampler", "grammar")

PROGRAM = """
import asyncio
from loopwright import Context, regex, tensor

def mirostat(scores, state):
    logprobs = scores - tensor.logsumexp(scores)
    is_kept = (-logprobs <= state["most"]) | (scores == tensor.highest(scores))
    weights = tensor.where(is_kept, tensor.exp(logprobs), 0)
    token = tensor.draw(weights)
    return token, {"most": state["most"] - 0.2 * (tensor.log(tensor.total(weights)) - logprobs[token] - 2)}

async def speculate(ctx, n, options):
    found = []
    while len(found) < n:
        drafts = (found[-3:] or [7, 8])[:max(0, n - len(found) - 1)]
        found += (await ctx.verify(drafts, **options)).tokens
    return found[:n]

async def watch(ctx, n, options):
    left = {2, 5}
    async with ctx.watch(window=4, max_tokens=n, **options) as watched:
        async for token in watched:
            if token.index in left:
                left.remove(token.index)
                watched.veto(ban=token.index == 5)
    return watched.turn

async def fork(ctx, n, options):
    others = [await ctx.fork() for _ in range(3)]
    for number, other in enumerate(others):
        other.append(" and" * number)
    return [told(turn) for turn in await asyncio.gather(*(one.generate(max_tokens=n, **options) for one in others))]

async def look(ctx, n):
    found = []
    for number in range(min(n, 12)):
        seen = await ctx.next_dist(k=64)
        found.append([list(map(int, seen.ids[:5])), list(map(float, seen.logprobs[:5])), float(seen.tail_mass)])
        ctx.accept(int(seen.ids[number % 3]))
    return found

def told(turn):
    return [turn.tokens, turn.logprobs, turn.text]

async def main(question: str, way: str, n: int, options: dict):
    ctx = Context()
    ctx.system("You are brief.")
    ctx.user(question)
    if way == "speculate":
        return await speculate(ctx, n, options)
    if way == "watch":
        return told(await watch(ctx, n, options))
    if way == "look":
        return await look(ctx, n)
    if way == "score":
        scores = await ctx.score([" yes", " no, never", " perhaps one day"])
        return [str(scores), await ctx.choose([" red", " green", " blue sky"], temperature=1.0), ctx.tokens]
    if way == "sampler":
        turn = await ctx.generate(sampler=mirostat, state={"most": 4.0}, max_tokens=n)
        return [told(turn), turn.sampler_state["most"]]
    if way == "window":
        await ctx.window(24, sinks=4)
        return told(await ctx.generate(max_tokens=n + 20, **options))
    if way == "grammar":
        form = regex("[A-Z][a-z]{3,9} (is|was) [a-z ]{4,30}")
        return told(await ctx.generate(max_tokens=n, grammar=form, **options))
    first = await ctx.generate(max_tokens=n, **options)
    if way == "fork":
        return [told(first), await fork(ctx, n, options)]
    if way == "truncate":
        await ctx.truncate(len(ctx.tokens) - 2)
        ctx.append(" so")
    if way == "hide":
        await ctx.hide(range(3, 9))
        await ctx.generate(max_tokens=4, **options)
        await ctx.forget(range(10, 14))
    return [told(first), told(await ctx.generate(max_tokens=n, **options))]
"""


def request(random: Random, model: str) -> Asked:
    """Of any kind."""
    kinds = [(chat, 5), (completion, 2), (response, 1), (message, 1), (program, 3)]
    kind = random.choices([one for one, _ in kinds], [weight for _, weight in kinds])[0]
    path, body = kind(random)
    return path, body if kind is program else {"model": model, **body}


def chat(random: Random) -> Asked:
    system, question = random.choice(SYSTEMS), random.choice(QUESTIONS)
    words = random.choices(("Trains", "rivers", "maps", "and", "again", "please", "7"), k=random.randrange(60))
    messages = [{"role": "system", "content": system}] if system else []
    content = f"{question} {' '.join(words)}" if random.random() < 0.4 else question
    body: dict[str, Any] = {"messages": [*messages, {"role": "user", "content": content}], **sampling(random)}
    body["max_tokens"] = random.choice((1, 5, 12, 24, 40, 64))
    if random.random() < 0.25:
        body |= constraint(random)
    elif random.random() < 0.3:
        tools = [{"type": "function", "function": {"name": name, "parameters": one}} for name, one in TOOLS.items()]
        choice = random.choice(("auto", "required", {"type": "function", "function": {"name": "add"}}))
        body |= {"tools": tools, "tool_choice": choice, "max_tokens": 60}
    body |= sometimes(random, 0.3, stop=(["."], ["\n", "the"], [" a"], ["e s"]), return_token_ids=(True,))
    body |= sometimes(random, 0.2, n=(2, 3), prompt_logprobs=(0, 2), ignore_eos=(True,))
    if random.random() < 0.3:
        kinds = {"logprob_kind": random.choice(("raw", "processed"))}
        body |= {"logprobs": True, "top_logprobs": random.choice((0, 3, 20)), **kinds}
    return "/v1/chat/completions", body | sometimes(random, 0.5, stream=(True,))


def completion(random: Random) -> Asked:
    prompt: Any = random.choice(QUESTIONS)
    if random.random() < 0.3:
        prompt = [random.randrange(1000, 40000) for _ in range(random.randrange(1, 60))]
    elif random.random() < 0.2:
        prompt = [prompt, random.choice(QUESTIONS)]
    body = {"prompt": prompt, "max_tokens": random.choice((1, 8, 24, 50)), **sampling(random)}
    body |= constraint(random) if random.random() < 0.2 else {}
    body |= sometimes(random, 0.3, logprobs=(0, 2, 5), stop=(["."], ["\n"], ["the "]), return_token_ids=(True,))
    body |= sometimes(random, 0.2, echo=(True,), n=(2,))
    return "/v1/completions", body | random.choice(({"stream": True}, {"best_of": 3}, {}))


def response(random: Random) -> Asked:
    body: dict[str, Any] = {
        "input": random.choice(QUESTIONS),
        "max_output_tokens": 40,
        "temperature": 0,
        "store": False,
    }
    if random.random() < 0.3:
        tools = [{"type": "function", "name": name, "parameters": one} for name, one in TOOLS.items()]
        body |= {"tools": tools, "tool_choice": random.choice(("auto", "required"))}
    elif random.random() < 0.3:
        body["text"] = {"format": {"type": "json_schema", "name": "x", "schema": FORMS[0], "strict": True}}
    return "/v1/responses", body | sometimes(random, 0.5, stream=(True,))


def message(random: Random) -> Asked:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": random.choice(QUESTIONS)}], "temperature": 0}
    body |= {"max_tokens": random.choice((5, 20, 50))}
    if random.random() < 0.3:
        tools = [{"name": name, "input_schema": one} for name, one in TOOLS.items()]
        body |= {"tools": tools, "tool_choice": {"type": random.choice(("auto", "any"))}}
    return "/v1/messages", body | sometimes(random, 0.4, stream=(True,), stop_sequences=(["."],), system=SYSTEMS[:2])


def program(random: Random) -> Asked:
    options = {"temperature": random.choice((0.0, 1.0))} | sometimes(random, 0.2, frequency_penalty=(0.5,))
    question, way = random.choice(QUESTIONS), random.choice(WAYS)
    arguments = {"question": question, "way": way, "n": random.choice((6, 14, 30)), "options": options}
    return "/v1/runs", {"source": PROGRAM, "arguments": arguments, "seed": random.randrange(100), "stream": False}


def sampling(random: Random) -> dict[str, Any]:
    body: dict[str, Any] = {"temperature": random.choice((0, 0, 0.5, 0.8, 1, 1.3)), "seed": random.randrange(1000)}
    body |= sometimes(random, 0.3, top_p=(0.5, 0.9, 0.99), top_k=(1, 5, 40, 2000))
    body |= sometimes(random, 0.2, min_p=(0.05,), frequency_penalty=(-0.5, 0.7), presence_penalty=(0.6,))
    body |= sometimes(random, 0.2, repetition_penalty=(1.2,))
    return body | sometimes(random, 0.15, logit_bias=[{str(random.randrange(100, 49000)): 5, "30": -100}])


def constraint(random: Random) -> dict[str, Any]:
    schema = {"name": "x", "schema": random.choice(FORMS), "strict": True}
    return random.choice(
        (
            {"response_format": {"type": "json_schema", "json_schema": schema}},
            {"response_format": {"type": "json_object"}},
            {"guided_regex": r"(yes|no), because [a-z ]{5,40}\."},
            {"guided_choice": ["red", "green", "light blue", "dark blue"]},
            {"guided_grammar": 'start: "a" ("b" | "cd")+ "." '},
        )
    )


def sometimes(random: Random, share: float, **values: Any) -> dict[str, Any]:
    """Each field with that probability, with one of its values."""
    return {name: random.choice(ones) for name, ones in values.items() if random.random() < share}
