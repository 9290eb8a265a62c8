"""What cannot be honoured is refused with the field, the value and what it may be; just inside the limit it works."""

import pytest
from test_context_edits import NATIVE_ONLY, PROMPT, result_of

from system_rig import byte_system, in_loop

REFUSED = {
    "ctx.generate(max_tokens=0)": ("generate.max_tokens: 0 is refused: Expected `int` >= 1", "generate.max_tokens"),
    "ctx.generate(max_tokens=-1)": ("generate.max_tokens: -1 is refused: Expected `int` >= 1", "generate.max_tokens"),
    "ctx.generate(stop=['a', ''])": (
        'generate.stop[1]: "" is refused: Expected `str` of length >= 1',
        "generate.stop[1]",
    ),
    "ctx.generate(stop=['a'] * 65)": ("generate.stop: 65 of them is refused: Expected `array` of length <= 64", ""),
    "ctx.generate(seed=2**62)": (f"generate.sampling.seed: {2**62} is refused: Expected `int` <= {2**62 - 1}", ""),
    "ctx.generate(top_p=1.5)": ("generate.sampling.top_p: 1.5 is refused: Expected `float` <= 1.0", ""),
    "ctx.generate(stop=['a'] * 64, until='b')": ("until: is one stop more beside 64 of stop; the limit is 64", "until"),
    "ctx.generate(until='')": ("until: '' is empty", "until"),
    "ctx.generate(temperature='hot')": ("temperature: 'hot' is not float or None", "temperature"),
    "ctx.generate(max_tokens='ten')": ("max_tokens: 'ten' is not int or None", "max_tokens"),
    "ctx.generate(stop=3)": ("stop: 3 is not str or a list of str", "stop"),
    "ctx.generate(temperature=float('nan'))": ("temperature: nan is not a finite number", ""),
    "ctx.generate(logit_bias={65: float('-inf')})": ("logit_bias.65: -inf is not a finite number", ""),
    "ctx.generate(stop_entropy=float('inf'))": ("stop_entropy: inf is not a finite number", ""),
    "ctx.verify([1] * 257)": ("num_drafts: 257 is refused: Expected `int` <= 256", "num_drafts"),
    "ctx.next_dist(0)": ("distributions[0].k: 0 is refused: Expected `int` >= 1", "distributions[0].k"),
    "ctx.truncate(-1)": ("truncate: -1 is not from 0 to the context's 67", "num_tokens"),
    "ctx.truncate(68)": ("truncate: 68 is not from 0 to the context's 67", "num_tokens"),
}
ALLOWED = (
    "ctx.generate(max_tokens=1)", "ctx.generate(stop=['a'] * 64, max_tokens=1)",
    "ctx.generate(stop=['a'] * 63, until='b', max_tokens=1)",
    "ctx.generate(seed=2**62 - 1, max_tokens=1)",
    "ctx.generate(top_p=1.0, max_tokens=1)", "ctx.verify([1] * 256)", "ctx.next_dist(1)", "ctx.next_dist(260)",
    "ctx.truncate(67)", "ctx.truncate(1)",
)  # fmt: skip

ATTEMPT = """
    try:
        await CALL
    except LoopwrightError as error:
        said.append([str(error), error.field])
"""


@pytest.mark.parametrize("sandbox", ["native", pytest.param("wasm", marks=pytest.mark.wasm)])
def test_a_value_beyond_its_limit_is_named_with_the_limit_and_the_context_goes_on(sandbox: str) -> None:
    attempts = "\n".join(ATTEMPT.replace("CALL", one) for one in REFUSED)
    body = f"""
said = []
ctx = Context()
ctx.append(ids)
if True:
{attempts}
turn = await ctx.generate(max_tokens=3, ignore_eos=True)
return said, turn.tokens
"""

    async def scenario() -> None:
        async with byte_system() as system:
            said, tokens = await result_of(system, body, sandbox, ids=PROMPT)
            assert len(said) == len(REFUSED)
            for (text, field), (part, expected_field) in zip(said, REFUSED.values(), strict=True):
                assert part in text
                assert expected_field in field
            assert len(tokens) == 3

    in_loop(scenario)


def test_the_last_value_within_each_limit_works() -> None:
    lines = "\n".join(f"ctx = Context()\nctx.append(ids)\nawait {one}" for one in ALLOWED)

    async def scenario() -> None:
        async with byte_system(runtime=NATIVE_ONLY) as system:
            assert await result_of(system, f"{lines}\nreturn 'all'", ids=PROMPT) == "all"

    in_loop(scenario)
