"""Case D5. Token ids that do not survive a way through text are run and reported as they are, streamed and not."""

from itertools import chain

from system_rig import System, WatchedExecutor, byte_oracle, byte_system, in_loop

IDS = [0xFF, 0xC3, 258, 0xC3, 0xA9, 0x80, 257, 0xF0, 0x9F]  # stray bytes, halves of characters, control tokens
ODD = [0xFF, 0xC3, 0x80, 0xF0]  # the answer's alphabet: bytes that are no UTF-8 in any order

PROGRAM = """
from loopwright import Context, Queue, detokenize
async def main(ids: list[int], odd: list[int]):
    plain, streamed = Context(), Context()
    for ctx in (plain, streamed):
        ctx.append(ids)
    turn = await plain.generate(max_tokens=12, allowed=odd, ignore_eos=True, logit_bias={odd[0]: 0.5})
    stream = streamed.stream(max_tokens=12, allowed=odd, ignore_eos=True, logit_bias={odd[0]: 0.5})
    chunks = [token async for chunk in stream for token in chunk.tokens]
    dist = await plain.next_dist(k=3, must_include=ids)
    return [turn.tokens, chunks, stream.turn.tokens, plain.tokens, streamed.tokens, list(dist.ids), turn.text]
"""


def test_ids_in_are_ids_run_and_ids_reported() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            tokenizer = system.text.tokenizer
            assert tokenizer.encode(tokenizer.decode(IDS)) != IDS
            found = (await system.run(PROGRAM, ids=IDS, odd=ODD)).result
            tokens, chunks, turn_tokens, plain, streamed, listed, text = found
            assert tokens == chunks == turn_tokens
            assert set(tokens) <= set(ODD)
            assert tokens == answer()
            assert plain == streamed == [*IDS, *tokens]
            assert {*IDS} <= {*listed}
            assert "\ufffd" in text  # what no text can hold is marked in the text, and only there
            assert [*IDS, *tokens] in runs_of(system, 2)

    in_loop(scenario)


def answer() -> list[int]:
    """The one-request loop over the ids."""
    tokens: list[int] = []
    for _ in range(12):
        logits = byte_oracle().logits([*IDS, *tokens])[-1].clone()
        logits[ODD[0]] += 0.5
        tokens.append(max(ODD, key=lambda token: (float(logits[token]), -token)))
    return tokens


def runs_of(system: System, num_runs: int) -> list[list[int]]:
    """What each page table ran, by its first block: the prompts and the tokens that were fed back."""
    assert isinstance(system.executor, WatchedExecutor)
    by_block: dict[int, list[int]] = {}
    for row in chain.from_iterable(batch.all_rows for batch in system.executor.batches):
        by_block.setdefault(row.block_ids[0], [])[row.kv_len :] = row.token_ids
    assert len(by_block) == num_runs
    return list(by_block.values())
