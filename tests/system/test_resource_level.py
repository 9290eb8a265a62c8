"""The resource level as a program sees it, over the real engine: facts, traits, lent pages, errors."""

from importlib.metadata import version

import pytest

from loopwright.core.calls import Sampling
from system_rig import CHATML, System, byte_oracle, byte_system, in_loop

SANDBOXES = ["native", pytest.param("wasm", marks=pytest.mark.wasm)]
PROMPT = [256, *b"A page lent to another run is read and never written"]


async def result_of(system: System, body: str, sandbox: str = "native", **arguments: object) -> object:
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    parameters = ", ".join(f"{name}=None" for name in arguments)
    source = f"from loopwright import *\nasync def main({parameters}):\n{lines}\n"
    return (await system.run(source, sandbox, seed=11, **arguments)).result


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_program_learns_what_it_was_started_with_and_what_the_server_has(sandbox: str) -> None:
    body = """
facts, here, named = await run_facts(), await model(), await model("byte")
assert here == named
try:
    await model("other")
except NotFound as error:
    message = error.message
tokens = await tokenize("Zoë")
vocab = await vocabulary()
return {
    "facts": [facts.run, facts.version, facts.seed, facts.arguments],
    "model": [here.name, list(here.traits), here.version, here.service_id, here.vocab_size],
    "models": [
        [one.name for one in await models(traits=traits)] for traits in ([], ["forward", "tokenize"], ["adapter"])
    ],
    "unknown": message,
    "template": await prompt_template(),
    "vocabulary": [len(vocab), b"".join(vocab[token] for token in tokens).decode(), vocab[256].decode()],
}
"""

    async def scenario() -> None:
        async with byte_system() as system:
            found = await result_of(system, body, sandbox, question="why?", depth=3)
            assert isinstance(found, dict)
            run, server, seed, arguments = found["facts"]
            (info,) = await system.launcher.runs()
            assert (run, server, seed) == (info.run, version("loopwright"), 11)
            assert arguments == {"question": "why?", "depth": 3}
            traits = ["allocate", "forward", "input_text", "output_text", "tokenize"]
            assert found["model"] == ["byte", traits, "F32-test", 0, system.text.info.vocab_size]
            assert found["models"] == [["byte"], ["byte"], []]
            assert "'other' is not served; served: byte" in found["unknown"]
            assert found["template"] == CHATML
            assert found["vocabulary"] == [system.text.info.vocab_size, "Zoë", ""]

    in_loop(scenario)


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_pages_that_one_run_exports_another_goes_on_from_as_the_oracle_does(sandbox: str) -> None:
    giver = """
size = (await model()).page_size
pages = list(range(1000, 1000 + -(-len(tokens) // size)))
queue = Queue()
queue.post("forward_text", pages=[], grow_from=pages[0], kv_len=0, tokens=tokens, positions=list(range(len(tokens))))
await queue.export_pages("doc", pages, positions=range(len(tokens)), tokens=tokens, persistent=True)
return [one["kv_len"] for one in (await resources.exported_pages("d"))["exports"]]
"""
    taker = """
queue, size = Queue(priority=-1), (await model()).page_size
await queue.set_priority(1)
num_pages = (await resources.exported_pages())["exports"][0]["num_pages"]
pages = list(range(2000, 2000 + num_pages))
doc = await queue.import_pages("doc", pages)
tail = doc["kv_len"] % size
queue.post("allocate_pages", pages=[3000])
queue.post("copy_page", source=pages[-1], target=3000, size=tail)
segment = await queue.issue(
    "generate", pages=[*pages[:-1], 3000], grow_from=3001, kv_len=doc["kv_len"], tokens=[next_token],
    positions=[doc["positions"][-1] + 1], max_tokens=20,
)
held = (await queue.debug_query())["num_pages"]
await queue.unexport_pages("doc")
return [doc["tokens"], segment["tokens"], (await resources.exported_pages())["exports"], held]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            assert await result_of(system, giver, sandbox, tokens=PROMPT[:-1]) == [len(PROMPT) - 1]
            before = len(system.executor.batches)  # type: ignore[attr-defined]
            tokens, sampled, exports, held = await result_of(system, taker, sandbox, next_token=PROMPT[-1])  # type: ignore[misc]
            assert tokens == PROMPT[:-1]
            assert sampled == list(byte_oracle().generate(PROMPT, Sampling(), 20, ()).tokens)
            assert exports == []
            assert held == 4 + 1 + 1  # imported, the copy of the tail, grown
            rows = [row for batch in system.executor.batches[before:] for row in batch.all_rows]  # type: ignore[attr-defined]
            assert sum(row.num_tokens for row in rows) == 20, "nothing of the prompt was run again"

    in_loop(scenario)


def test_what_no_engine_of_ours_can_do_is_refused_by_trait_and_call() -> None:
    body = """
queue = Queue()
found = []
for issue in (
    lambda: resources.adapters(),
    lambda: resources.embeds_needed(b"png"),
    lambda: queue.embed_image(b"png", [0], [1]),
    lambda: queue.forward_with_adapter("poet", [], 0, []),
):
    try:
        await issue()
    except ModelLacksTrait as error:
        found.append(error.message.partition(";")[0])
    queue.clear()
return found
"""

    async def scenario() -> None:
        async with byte_system() as system:
            assert await result_of(system, body) == [
                "adapters: the model byte lacks the trait adapter",
                "embeds_needed: the model byte lacks the trait input_image",
                "embed_image: the model byte lacks the trait input_image",
                "forward_with_adapter: the model byte lacks the trait adapter",
            ]

    in_loop(scenario)


def test_every_call_of_every_trait_that_the_model_names_runs_on_its_engine() -> None:
    """The traits are the engine's own word; this takes it at it, fused and in single calls."""
    body = """
queue = Queue()
queue.allocate_pages([1, 2])
queue.allocate_embeds([1, 2, 3])
queue.embed_text(tokens, [0, 1], [1, 2])
forwarded = queue.forward([1], 0, [1, 2], [3])
distribution = queue.next_distribution(3, k=5)
sampled = queue.sample(3, {}, 2)
queue.copy_page(1, 2, size=2)
queue.shift_kv([2], 4, size=2)
queue.share_pages([1], [9])
queue.free_embeds([1, 2, 3])
await queue.synchronize()
text = await resources.render_chat(
    [{"role": "user", "content": "hi"}], num_done=0, is_open=False, add_generation_prompt=True
)
turn = queue.segment(
    emit=True, stream=False, pages=[], grow_from=50, kv_len=0, tokens=text["tokens"],
    positions=list(range(len(text["tokens"]))), max_tokens=3,
)
end = await turn.final()
assert end["text"] == await detokenize(end["tokens"])
return [(await forwarded)["kv_len"], len((await distribution)["distributions"]), (await sampled)["token"]]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            kv_len, num_distributions, token = await result_of(system, body, tokens=PROMPT[:2])  # type: ignore[misc]
            assert (kv_len, num_distributions) == (2, 1)
            assert [token] == list(byte_oracle().generate(PROMPT[:2], Sampling(), 1, ()).tokens)

    in_loop(scenario)


def test_what_belongs_to_another_run_cannot_be_freed_read_or_guessed() -> None:
    owner = """
queue = Queue()
await queue.allocate_pages([77])
await queue.allocate_embeds([77])
emit("ready")
await queue.issue("generate", pages=[], grow_from=100, kv_len=0, tokens=[1], positions=[0], max_tokens=400)
return "went on"
"""
    thief = """
messages = []
for op, fields in (
    ("free_pages", {"pages": [77]}),
    ("free_embeds", {"embeds": [77]}),
    ("share_pages", {"sources": [77], "targets": [1]}),
    ("copy_page", {"source": 77, "target": 77, "size": 1}),
    ("forward_text", {"pages": [77], "kv_len": 1, "tokens": [1], "positions": [1]}),
    ("export_pages", {"name": "loot", "pages": [77], "positions": [0]}),
    ("import_pages", {"name": "never", "pages": [1]}),
):
    queue = Queue()
    try:
        await queue.issue(op, **fields)
    except NotFound as error:
        messages.append(error.message)
return messages
"""

    async def scenario() -> None:
        async with byte_system() as system:
            running = await system.start(f"from loopwright import *\nasync def main():\n{indented(owner)}\n")
            async for event in system.launcher.events(running.run_id):
                if type(event).__name__ == "Emit":
                    break
            messages = await result_of(system, thief)
            assert isinstance(messages, list)
            assert len(messages) == 7
            assert all("page 77 is not bound; the run has 0 names of pages" in messages[n] for n in (0, 2, 3, 4, 5))
            assert "embed 77 is not bound; the run has 0 names of embeds" in messages[1]
            assert messages[6] == "name: nothing is exported as 'never'"
            assert (await running.outcome()).result == "went on"

    in_loop(scenario)


def indented(body: str) -> str:
    return "\n".join("    " + line for line in body.strip().splitlines())
