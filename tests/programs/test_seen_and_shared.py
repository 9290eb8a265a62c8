"""Programs that say what their tokens see, and that lend KV by name: each equals a dense mask in the one-request loop,
and runs no token twice."""

import hashlib
from typing import Any

import pytest
from script_rig import emitted

from loopwright.control.config import ControlConfig
from loopwright.engine.attention import visible_places
from loopwright.engine.byte_model import BYTE_TOKENS
from loopwright.text.stream import detokenize
from system_rig import Outcome, System, WatchedExecutor, byte_system, in_loop, program_source
from view_model import DenseContext

NO_CACHE = ControlConfig(prefix_cache=False)  # so that only what the program shares can save work
BEGIN, END_OF_TEXT, END_OF_TURN = 256, 257, 259


async def run(system: System, name: str, **arguments: Any) -> tuple[Outcome, int]:
    """What came of it, and how many tokens it had to run in rows of more than one."""
    before = (await system.controller.stats()).num_prefill_tokens
    outcome = await system.run(program_source(name), **arguments)
    return outcome, (await system.controller.stats()).num_prefill_tokens - before


async def unexport(system: System, name: str) -> None:
    """What outlives its run goes, so that every page comes back."""
    source = "from loopwright import unexport_context\nasync def main(name: str):\n    await unexport_context(name)\n"
    assert (await system.run(source, name=name)).final.code == "ok"


def said_next(dense: DenseContext, max_tokens: int, *, stops_at_line: bool = True) -> str:
    """What the model says greedily under the masks, up to the end of the line or of the turn."""
    written: list[int] = []
    while len(written) < max_tokens:
        (token,), _ = dense.generate(1)
        if token in (END_OF_TEXT, END_OF_TURN) or (stops_at_line and token == ord("\n")):
            break
        written.append(token)
    return detokenize(BYTE_TOKENS, written)


def test_a_lent_prefix_is_run_once_and_a_later_run_runs_its_question_alone() -> None:
    prefix = "The museum opens at nine. " * 6
    questions = ["When do you open?", "And on Monday?"]

    async def scenario() -> None:
        async with byte_system(control=NO_CACHE) as system:
            assert system.text.chat_template is not None
            for number, question in enumerate(questions):
                outcome, num_run = await run(system, "prefix_caching", question=question, prefix=prefix, max_tokens=12)
                messages = [{"role": "system", "content": prefix}, {"role": "user", "content": question}]
                prompt = system.text.chat_template.render_delta(messages, 0, False, True)
                dense = DenseContext()
                dense.append(prompt)
                assert outcome.result == said_next(dense, 12, stops_at_line=False)
                (told,) = emitted(outcome)
                assert told["imported"] == bool(number)
                assert told["prefix"] + told["own"] == len(prompt)
                # The last token of the prefix runs with what follows it; so it did, alone, before it was lent.
                assert num_run == (told["own"] + 1 if number else len(prompt))
            await unexport(system, f"prefix/{hashlib.sha256(prefix.encode()).hexdigest()}")

    in_loop(scenario)


FLAT = "modules/flat"


@pytest.mark.parametrize("wanted", [["house", "kitchen", "region"], ["region"], ["kitchen", "region"], []], ids=str)
def test_modules_in_any_subset_equal_a_forward_with_the_same_block_mask(wanted: list[str]) -> None:
    question = "Where is the key?"

    async def scenario() -> None:
        async with byte_system(control=NO_CACHE) as system:
            _, num_built = await run(system, "modular_caching", wanted=[], max_tokens=1)
            outcome, num_run = await run(system, "modular_caching", question=question, wanted=wanted, max_tokens=16)
            namespace: dict[str, Any] = {}
            exec(program_source("modular_caching"), namespace)
            dense = DenseContext()
            dense.append([BEGIN, *namespace["INTRODUCTION"].encode()])
            introduction, spans = (0, len(dense.tokens)), {}
            for name, text in namespace["MODULES"].items():
                start = len(dense.tokens)
                dense.place(list(text.encode()), [introduction])
                spans[name] = (start, len(dense.tokens))
            dense.place([ord("\n")], [introduction, *spans.values()])
            size = len(dense.tokens)
            dense.attend([introduction, *(spans[name] for name in wanted), (size - 1, size)])
            asked = f"Question: {question}\nAnswer:"
            dense.append(list(asked.encode()))
            assert outcome.result == said_next(dense, 16).strip()
            assert num_built == size - 1 + len(asked) + 1  # each module once, and then as any run
            assert num_run == len(asked) + 1  # the line break that ends the modules sees the wanted ones alone
            assert emitted(outcome)[0]["imported"]
            num_seen = sum(end - start for start, end in [introduction, *(spans[name] for name in wanted)])
            assert emitted(outcome)[0]["pages"] <= -(-(num_seen + len(asked) + 1 + 16) // 16)
            await unexport(system, FLAT)

    in_loop(scenario)


Node = list[Any]
TREE: Node = ["Guests.", ["Food.", ["Breakfast at seven."], ["Dinner at eight."]], ["Sleep.", ["Quiet."]]]


def test_a_document_tree_runs_in_one_forward_under_the_mask_of_its_nodes() -> None:
    """The reference knows nodes alone: which node wrote each letter, and which is whose parent."""
    tokens, owners, parents = [BEGIN], [0], {0: -1}

    def write(node: int, text: str) -> None:
        tokens.extend(text.encode())
        owners.extend([node] * len(text))

    def walk(node: Node, number: int, end: str) -> None:
        text, *below = node
        write(number, f"<node>{text}")
        for one in below:
            parents[len(parents)] = number
            walk(one, len(parents) - 1, "</node>\n")
        write(number, end)

    walk(TREE, 0, "Question: Dinner?\nAnswer:")

    def sees(own: int, other: int) -> bool:
        one, two = owners[own], owners[other]
        return one == two or parents[one] == two or parents[two] == one

    dense = DenseContext()
    for place, token in enumerate(tokens):
        dense.place([token], [(other, other + 1) for other in range(place) if sees(place, other)])

    async def scenario() -> None:
        async with byte_system(control=NO_CACHE) as system:
            outcome, num_run = await run(
                system, "hierarchical_attention", document=TREE, question="Dinner?", max_tokens=20
            )
            num_tokens = len(tokens)
            assert outcome.result == said_next(dense, 20).strip()
            assert num_run == num_tokens - 1
            assert isinstance(system.executor, WatchedExecutor)
            first, *others = [row for batch in system.executor.batches for row in batch.all_rows]
            assert (first.num_tokens, first.kv_len) == (num_tokens - 1, 0)
            for own, runs in enumerate(first.mask):
                seen = [other == own or (other < own and sees(own, other)) for other in range(num_tokens - 1)]
                assert visible_places(runs, num_tokens - 1).tolist() == seen, own
            num_seen = sum(sees(num_tokens - 1, other) for other in range(num_tokens - 1))
            assert num_seen < num_tokens - 50  # else the mask hides nothing worth it
            assert [(row.kv_len, row.mask) for row in others] == [(num_seen + n, None) for n in range(len(others))]

    in_loop(scenario)


@pytest.mark.parametrize(("name", "sinks"), [("windowed_attention", 0), ("attention_sink", 8)])
def test_a_stream_with_a_window_equals_a_dense_mask_and_gives_its_pages_back(name: str, sinks: int) -> None:
    async def scenario() -> None:
        async with byte_system(num_blocks=8, control=NO_CACHE) as system:  # of 13 that all of the tokens would fill
            options = {"sinks": sinks} if sinks else {}
            outcome, _ = await run(system, name, topic="a pier", window=40, max_tokens=120, **options)
            dense = DenseContext()
            if sinks:
                assert system.text.chat_template is not None
                messages = [{"role": "user", "content": "Tell me a long story about a pier."}]
                dense.append(system.text.chat_template.render_delta(messages, 0, False, False))
                opening = system.text.chat_template.render_delta(messages, 0, False, True)[len(dense.tokens) :]
            else:
                dense.append([BEGIN, *b"Here is a long story about a pier."])
                opening = []
            dense.window(40, sinks)
            dense.append(opening)
            assert outcome.text == said_next(dense, 120, stops_at_line=False)
            assert len(outcome.text) > 60  # else nothing fell out
            told = outcome.result if sinks else emitted(outcome)[0]
            assert told["most_pages" if sinks else "pages"] <= 1 + -(-40 // 16) + 1

    in_loop(scenario)
