"""Speculative decoding with a smaller model of the same tokens, such as the same one with layers left out.

It writes a few tokens ahead, the large one checks them in one forward, and the tokens are those of the large one alone;
where too few are right for what they cost, it guesses ever less often. (Leviathan et al., arXiv 2211.17192; checked
against the draws.)

Without `small` it takes another model of the server; beside none there is nothing to gain, and it says so. One beside
itself in fewer layers: `loopwright serve --model default --model default:layers=0-19,28-29`.
"""

# /// program
# permissions = { models = ["*"] }
# ///

from loopwright import Context, Verified, emit, model, models, speculate


async def main(
    question: str = "Tell me about the sea.",
    small: str = "",
    drafts: int = 4,
    drafting: float = 1.0,  # what a round of drafts takes to write, in steps of the large model
    max_tokens: int = 48,
    temperature: float = 0.0,
    seed: int = 0,
) -> str:
    if not (small := small or await other_model()):
        emit(
            {"no gain": "the server has one model, which drafts for itself; serve a smaller one of the same tokens too"}
        )
    ctx, ahead = Context(seed=seed), Context(seed=seed, model=small)
    for one in (ctx, ahead):
        one.user(question)

    async def draft(_: Verified | None, most: int) -> tuple[int, ...]:
        if ahead.tokens:  # what was accepted is there already, but for the last token that the large model wrote
            await ahead.truncate(min(len(ahead.tokens), len(ctx.tokens) - 1))
            ahead.accept(ctx.tokens[len(ahead.tokens) :])
        if not most:
            return ()
        turn = await ahead.generate(max_tokens=min(drafts, most), ignore_eos=True, temperature=temperature)
        return turn.tokens

    found = await speculate(ctx, draft, max_tokens=max_tokens, drafting=drafting, temperature=temperature)
    emit({"steps": found.num_steps, "saved": found.num_saved, "guesses": found.num_guesses, "gave_up": found.gave_up})
    return found.text


async def other_model() -> str:
    """A model of the server that has the same tokens, by its name; "" if there is none."""
    own = await model()
    others = [one.name for one in await models() if one.name != own.name and one.vocab_size == own.vocab_size]
    return others[0] if others else ""
