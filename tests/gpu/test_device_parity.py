"""On a GPU: kernels beside torch's operations, models in bf16 beside float32, the sampler beside the CPU's."""

import dataclasses

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from loopwright.core.batch import Batch, DecodeRows, ForwardRow, KvShift
from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.engine.byte_model import byte_model
from loopwright.engine.cuda.choice import choose_device
from loopwright.engine.cuda.matrices import Matrix
from loopwright.engine.cuda.operations import Operations, WideUse
from loopwright.engine.cuda.parts import DeviceParts
from loopwright.engine.cuda.runner import DeviceRunner
from loopwright.engine.cuda.sampling import RowSamplings, draw_rows
from loopwright.engine.cuda.wide_products import MOST_OFF
from loopwright.engine.loaded_model import Experts, LoadedModel
from loopwright.engine.sampler import choose
from runner_rig import Rig, dense_rows, runs_of, some_tokens

CUDA = torch.device("cuda")
MAX_NOISE = 0.012  # root mean square of the error of all log-probabilities over their spread
GEMMA = {
    "architecture": "gemma3", "num_heads": 4, "num_kv_heads": 2, "is_head_tied": True, "windows": (24, None),
    "local_rope_theta": 1e4, "rope_theta": 1e6,
}  # fmt: skip
EXPERTS = {"architecture": "qwen3moe", "num_heads": 4, "num_kv_heads": 2}
SIZES = {
    "heads of 64, 4 of a group": {"head_dim": 64, "num_heads": 8, "num_kv_heads": 2},
    "heads of 64, 3 of a group": {"head_dim": 64, "num_heads": 9, "num_kv_heads": 3},
    "heads of 128, 4 of a group": {"head_dim": 128, "num_heads": 8, "num_kv_heads": 2},
    "heads of 128, 3 of a group": {"head_dim": 128, "num_heads": 6, "num_kv_heads": 2},
    "biases": {"head_dim": 64, "num_heads": 4, "num_kv_heads": 4, "has_qkv_bias": True, "has_output_bias": True},
    "a window": {"head_dim": 64, "num_heads": 8, "num_kv_heads": 2, "windows": (24, None)},
    "head norms": {"architecture": "qwen3", "head_dim": 128, "num_heads": 4, "num_kv_heads": 2},
    "windows everywhere": {"architecture": "mistral", "head_dim": 128, "num_heads": 8, "num_kv_heads": 2,
                           "windows": (24, 24)},
    "Gemma 3": {**GEMMA, "head_dim": 256, "score_scale": 1 / 16},
    "Gemma 3, heads of 128": {**GEMMA, "head_dim": 128, "score_scale": 168**-0.5},
    "experts": {**EXPERTS, "head_dim": 128, "experts": Experts(16, 4, 256, is_normalized=True)},
    "experts whose shares stay": {**EXPERTS, "head_dim": 64, "experts": Experts(6, 2, 200, is_normalized=False)},
}  # fmt: skip
LIMITS = {"Gemma 3": 0.02, "Gemma 3, heads of 128": 0.02, "experts": 0.03, "experts whose shares stay": 0.03}
"""Of noise, where it is not MAX_NOISE: about 1.4 times what bfloat16 gives by torch on a CPU. Gemma's logits are of a
long residual stream."""
SHARES = {"experts": 0.85, "experts whose shares stay": 0.85}
"""Of the tokens that count. Two experts may be nearly as likely; then bfloat16 decides which of them a token has."""


def quiet(stage: str, fraction: float | None) -> None:
    """Nobody looks."""


def on_device(model: LoadedModel, attention: str | None = None, max_rows: int = 48, *, has_graphs: bool = True) -> Rig:
    """In bf16 with all kernels; `attention` "reference" is float32 with torch's operations."""

    def make(model: LoadedModel, num_blocks: int, num_slots: int) -> DeviceRunner:
        choice = choose_device("cuda", model.config)
        assert choice is not None
        is_reference = attention == "reference"
        with torch.inference_mode():
            parts = DeviceParts.make(
                model, num_blocks=num_blocks, device=CUDA,
                dtype=torch.float32 if is_reference else torch.bfloat16,
                attention="sdpa" if is_reference else attention or choice.attention,
                has_kernels=choice.has_kernels and not is_reference,
            )  # fmt: skip
            runner = DeviceRunner(model, parts, num_slots=num_slots, max_rows=max_rows)
            if has_graphs:
                runner.capture(quiet)
        return runner

    return Rig(model, num_blocks=1024, make_runner=make)


def operations() -> Operations:
    from loopwright.engine.cuda.kernels import TritonOperations  # noqa: PLC0415 (there may be no Triton)

    return TritonOperations()


def model_of(name: str) -> LoadedModel:
    model = byte_model(seed=3, hidden_size=512, intermediate_size=1024, max_context=2048, **SIZES[name])
    return dataclasses.replace(model, weights={key: one.bfloat16().float() for key, one in model.weights.items()})


def noise(found: np.ndarray, expected: np.ndarray, share: float = 1.0) -> float:
    """With a share less than 1 that part of the tokens counts which is nearest."""
    squares = np.sort(np.mean((found - expected) ** 2, axis=1))
    return float(np.sqrt(np.mean(squares[: int(np.ceil(share * len(squares)))])) / expected.std())


@pytest.fixture(autouse=True)
def full_float32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("attention", [None, "sdpa"])
@pytest.mark.parametrize("name", SIZES)
def test_prompts_masks_and_decode_steps_are_within_the_noise(name: str, attention: str | None) -> None:
    model, tokens = model_of(name), some_tokens(300)
    most, share = LIMITS.get(name, MAX_NOISE), SHARES.get(name, 1.0)
    rig, reference = on_device(model, attention), on_device(model, "reference")
    expected = reference.logprobs(tokens)
    assert noise(rig.logprobs(tokens), expected, share) < most
    blocks = rig.blocks(300)
    parts = [dense_rows(rig.rows(rig.row(tokens[:250], block_ids=blocks))[0])]
    for place in range(250, 300):
        parts.append(dense_rows(rig.rows(rig.row(tokens[place : place + 1], kv_len=place, block_ids=blocks))[0]))
    assert noise(np.concatenate(parts), expected, share) < most
    seen = [[(place <= own and not (own > 10 and 3 <= place < 7) and (place + own) % 5 != 1) or place == own
             for place in range(60)] for own in range(60)]  # fmt: skip
    mask, positions = tuple(runs_of(one[: own + 1]) for own, one in enumerate(seen)), [*range(20), *range(30, 70)]
    hidden = reference.logprobs(tokens[:60], positions, mask=mask)
    assert noise(rig.logprobs(tokens[:60], positions, mask=mask), hidden, share) < most
    rows = [rig.row(tokens[:40]), rig.row(tokens[:60], positions=positions, mask=mask), rig.row(tokens[:1]),
            rig.row(tokens[:90])]  # fmt: skip
    results = [dense_rows(result) for result in rig.rows(*rows)]
    for found, wanted in zip(results, (expected[:40], hidden, expected[:1], expected[:90]), strict=True):
        assert noise(found, wanted, share) < most


@pytest.mark.parametrize(
    ("num_rows", "name"),
    [*((num_rows, "heads of 64, 4 of a group") for num_rows in (1, 3, 17, 33, 48)), (1, "Gemma 3"), (17, "Gemma 3"),
     (5, "windows everywhere"), (1, "experts"), (48, "experts")],
)  # fmt: skip
def test_decode_steps_of_any_size_are_graphs_that_equal_single_rows(num_rows: int, name: str) -> None:
    """Serially and ahead; the reference's ids, but where its best two are close."""
    model, share = model_of(name), SHARES.get(name, 1.0)
    rig, reference = on_device(model), on_device(model, "reference")
    prompts = [some_tokens(20 + 5 * place, place) for place in range(num_rows)]
    tables = [rig.blocks(len(prompt) + 40) for prompt in prompts]
    rig.rows(*(rig.row(prompt, block_ids=table) for prompt, table in zip(prompts, tables, strict=True)))
    lengths = [len(prompt) for prompt in prompts]
    columns = DecodeRows(
        tables, lengths, lengths, [Sampling()] * num_rows, [()] * num_rows, [7] * num_rows, 0, [1] * num_rows
    )
    tokens: list[list[int]] = [[7] for _ in prompts]
    launched = []
    with torch.inference_mode():
        for number in range(20):
            fields = {"token_ids": [0] * num_rows, "sources": range(num_rows)} if number else {}
            launched.append(rig.runner.launch(Batch(decodes=replace(columns, num_steps=number, **fields))))
    for one in launched:
        for mine, token in zip(tokens, one.result().decodes.token_ids, strict=True):
            mine.append(token)
    for prompt, mine in zip(prompts, tokens, strict=True):
        logprobs = reference.logprobs([*prompt, *mine[:-1]])[len(prompt) :]
        gap = logprobs.max(1) - logprobs[np.arange(20), mine[1:]]
        assert np.quantile(gap, share) < 0.1


@pytest.mark.parametrize(
    ("name", "has_graphs"),
    [("heads of 64, 4 of a group", False), ("heads of 128, 4 of a group", False), ("heads of 128, 4 of a group", True)],
)
def test_a_prompt_that_is_not_finite_harms_none_beside_it_and_nothing_before(name: str, has_graphs: bool) -> None:
    """All of them without a prefix, so that their keys and values lie side by side; and as a graph."""
    model, broken = model_of(name), 9
    model.weights["embedding"][broken] = float("inf")
    prompts = [
        [1 + token % 200 + 20 * (token % 200 == broken - 1) for token in some_tokens(60, seed)] for seed in range(3)
    ]
    rig, reference = on_device(model, has_graphs=has_graphs), on_device(model, "reference")
    expected = [reference.logprobs(prompt) for prompt in prompts]
    bad = [*prompts[1][:30], broken, *prompts[1][31:]]
    rows = [rig.row(prompts[0]), rig.row(bad), rig.row(prompts[2])]
    asked = replace(rows[1], distributions=rows[1].distributions[:30])
    first, before, last = rig.rows(rows[0], asked, rows[2])
    for found, wanted in zip((first, before, last), (expected[0], expected[1][:30], expected[2]), strict=True):
        assert noise(dense_rows(found), wanted) < MAX_NOISE
    assert rig.rows(rows[1])[0].error is not None


@pytest.mark.parametrize(
    ("sampling", "num_rows", "has_passes"),
    [
        (Sampling(), 5, True),
        (Sampling(), 40, True),
        (Sampling(temperature=1e-4, seed=3), 5, True),
        (Sampling(), 5, False),
    ],
    ids=["greedy", "many", "drawn", "launch by launch"],
)
def test_prompts_beside_decode_rows_share_their_pass_and_are_within_the_noise(
    sampling: Sampling, num_rows: int, has_passes: bool
) -> None:
    """Chunks of a prompt beside rows that decode, then decode rows alone: a graph goes on where the pass ended. A pass
    is a graph itself, or launched one by one."""
    model = model_of("heads of 128, 4 of a group")
    rig, reference = on_device(model), on_device(model, "reference")
    assert rig.runner._steps._passes is not None
    if not has_passes:
        rig.runner._steps._passes = None
    prompts = [some_tokens(20 + 5 * place, place) for place in range(num_rows)]
    tables = [rig.blocks(len(prompt) + 40) for prompt in prompts]
    rig.rows(*(rig.row(prompt, block_ids=table) for prompt, table in zip(prompts, tables, strict=True)))
    lengths = [len(prompt) for prompt in prompts]
    columns = DecodeRows(
        tables, lengths, lengths, [sampling] * num_rows, [()] * num_rows, [7] * num_rows, 0, [1] * num_rows
    )
    long, blocks = some_tokens(900, 77), rig.blocks(900)
    chunks = [(0, 100), (100, 101), (101, 700), (700, 900)]
    tokens: list[list[int]] = [[7] for _ in prompts]
    launched = []
    with torch.inference_mode():
        for number in range(8):
            fields = {"token_ids": [0] * num_rows, "sources": range(num_rows)} if number else {}
            rows = []
            if number < 4:
                start, end = chunks[number]
                rows = [rig.row(long[start:end], kv_len=start, block_ids=blocks)]
            launched.append(rig.runner.launch(Batch(decodes=replace(columns, num_steps=number, **fields), rows=rows)))
    for one in launched:
        for mine, token in zip(tokens, one.result().decodes.token_ids, strict=True):
            mine.append(token)
    found = np.concatenate([dense_rows(one.result().rows[0]) for one in launched[:4]])
    assert noise(found, reference.logprobs(long)) < MAX_NOISE
    for prompt, mine in zip(prompts, tokens, strict=True):
        logprobs = reference.logprobs([*prompt, *mine[:-1]])[len(prompt) :]
        gap = logprobs.max(1) - logprobs[np.arange(8), mine[1:]]
        assert gap.max() < 0.1


@pytest.mark.parametrize(
    ("filters", "adjusting"),
    [
        ({}, {}),
        ({"top_k": 20}, {}),
        ({"top_p": 0.9}, {"logit_bias": {7: 3.0}, "allowed": tuple(range(0, 250, 3))}),
        ({"top_k": 40, "top_p": 0.7}, {"frequency_penalty": 0.7, "repetition_penalty": 1.2, "seen": (4, 5)}),
        ({"min_p": 0.1}, {"presence_penalty": 1.5}),
        ({"typical_p": 0.8}, {"top_k": 30}),
    ],
)
def test_draws_of_graphs_are_those_of_launches_one_by_one(
    filters: dict[str, float], adjusting: dict[str, object]
) -> None:
    model = model_of("heads of 64, 4 of a group")
    fields = [filters if seed % 2 else adjusting for seed in range(5)]
    samplings = [Sampling(temperature=1.0, seed=seed, **one) for seed, one in enumerate(fields)]
    samplings.append(Sampling(logprobs="processed"))
    found = []
    for has_graphs in (True, False):
        rig = on_device(model, max_rows=8, has_graphs=has_graphs)
        tables = [rig.blocks(40) for _ in samplings]
        prompts = [some_tokens(9, place) for place in range(len(tables))]
        for place in range(9):  # one by one: a prompt's pass as a graph has other tiles
            parts = zip(prompts, tables, strict=True)
            rig.rows(*(rig.row([tokens[place]], kv_len=place, block_ids=table) for tokens, table in parts))
        written = [[7] for _ in samplings]
        columns = DecodeRows(tables, [9] * 6, [9] * 6, samplings, written, [7] * 6, 0, [1] * 6)
        sampled, tokens = columns.token_ids, []
        for number in range(20):
            result = rig.step(Batch(decodes=replace(columns, num_steps=number, token_ids=sampled))).decodes
            sampled = result.token_ids
            for mine, token in zip(written, sampled, strict=True):
                mine.append(token)
            tokens.append((sampled, [round(one, 3) for one in result.logprobs]))
        found.append(tokens)
    assert found[0] == found[1]
    assert len({tuple(one) for one, _ in found[0]}) > 5


@pytest.mark.parametrize("num_rows", [1, 3, 17, 48])
def test_lists_of_graphs_are_those_of_launches_one_by_one(num_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the same logits, to the last bit; at number 1 beside a prompt, whose pass is no graph."""
    rig = on_device(model_of("heads of 64, 4 of a group"))
    prompts = [some_tokens(9 + place, place) for place in range(num_rows)]
    tables = [rig.blocks(64) for _ in prompts]
    rig.rows(*(rig.row(prompt, block_ids=table) for prompt, table in zip(prompts, tables, strict=True)))
    sizes = [256 if place % 2 else 1 + place for place in range(num_rows)]
    for number in range(3):
        rows = [
            ForwardRow(table, len(prompt) + number, [len(prompt) + number], [5 + number],
                       distributions=[DistributionRequest(k=size)])
            for table, prompt, size in zip(tables, prompts, sizes, strict=True)
        ]  # fmt: skip
        more = [rig.row(some_tokens(40, 7))] if number == 1 else []
        found = rig.rows(*rows, *more)[:num_rows]
        with monkeypatch.context() as patched:
            patched.setattr(rig.runner, "_list", lambda *_: ())
            expected = rig.rows(*rows, *more)[:num_rows]
        for mine, theirs in zip(found, expected, strict=True):
            (one,), (other,) = mine.distributions, theirs.distributions
            assert (one.ids, one.logprobs, one.truncated) == (other.ids, other.logprobs, other.truncated)
            assert one.covered == pytest.approx(other.covered, abs=1e-12)


def test_rows_that_go_on_by_their_ids_alone_are_those_that_are_sent_whole() -> None:
    model, num_rows = model_of("heads of 64, 4 of a group"), 17
    found = []
    for is_sent_whole in (False, True):
        rig = on_device(model)
        prompts = [some_tokens(9 + place, place) for place in range(num_rows)]
        tables = [rig.blocks(64) for _ in prompts]
        rig.rows(*(rig.row(prompt, block_ids=table) for prompt, table in zip(prompts, tables, strict=True)))
        told = []
        for number in range(30):
            places = [len(prompt) + number for prompt in prompts]
            told += rig.rows(
                *(
                    ForwardRow(table, place, [place], [5 + number + row], distributions=[DistributionRequest(k=100)])
                    for row, (table, place) in enumerate(zip(tables, places, strict=True))
                )
            )
            if is_sent_whole:
                rig.runner._steps.forget()
        found.append([one.distributions for one in told])
    assert found[0] == found[1]


def test_a_large_product_is_added_to_the_residual_without_being_rounded() -> None:
    from loopwright.engine.cuda.products import ADDED_ROWS  # noqa: PLC0415 (there may be no Triton)

    generator, num_rows = torch.Generator(CUDA).manual_seed(0), ADDED_ROWS + 77
    vectors = torch.randn(num_rows, 768, generator=generator, device=CUDA).bfloat16()
    matrix = Matrix.of(torch.randn(512, 768, generator=generator, device=CUDA) / 28, "plain", CUDA, torch.bfloat16)
    residual = torch.randn(num_rows, 512, generator=generator, device=CUDA)
    expected = residual.double() + vectors.double() @ matrix.values.double().T
    assert operations().project_onto(residual, vectors, matrix, None) is None
    assert float((residual - expected).abs().max()) < 1e-4  # a rounded product is off by 1e-2


def test_nan_stays_with_those_who_see_it() -> None:
    model, tokens = model_of("heads of 128, 4 of a group"), some_tokens(24)
    rig = on_device(model)
    expected = rig.logprobs(tokens[:20])
    blocks = rig.blocks(40)
    with torch.inference_mode():
        rig.runner._slots.vectors[3] = torch.nan
        rig.runner._slots.positions[3] = 20
    bad = ForwardRow(blocks, 20, (), input_slots=[3], distributions=rig.everything(1))
    results = rig.rows(rig.row(tokens[:20], block_ids=blocks), bad)
    np.testing.assert_array_equal(dense_rows(results[0]), expected)
    assert results[1].error is not None
    hidden = tuple(runs_of([place != 20 for place in range(21 + own + 1)]) for own in range(3))
    assert np.isfinite(dense_rows(rig.rows(rig.row(tokens[20:23], kv_len=21, block_ids=blocks, mask=hidden))[0])).all()
    seen = rig.rows(rig.row(tokens[20:21], kv_len=21, block_ids=blocks), rig.row(tokens[:1]))
    assert [one.error is not None for one in seen] == [True, False]


def test_a_shifted_prefix_is_one_that_was_computed_there() -> None:
    model, tokens = model_of("heads of 64, 3 of a group"), some_tokens(40)
    found = []
    for rig in (on_device(model), on_device(model, "reference")):
        blocks = rig.blocks(40)
        rig.rows(rig.row(tokens[:30], block_ids=blocks))
        rig.step(Batch(shifts=[KvShift(blocks, 3, 20, 90)]))
        found.append(dense_rows(rig.rows(rig.row(tokens[30:], kv_len=30, block_ids=blocks))[0]))
    assert noise(*found) < MAX_NOISE


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, seed=5),
        Sampling(temperature=1.0, top_k=50, seed=6),
        Sampling(temperature=0.7, top_p=0.9, seed=7),
        Sampling(temperature=0.7, top_k=20, top_p=0.8, min_p=0.01, seed=8),
        Sampling(temperature=1.3, min_p=0.02, seed=9),
        Sampling(temperature=1.0, top_p=0.999, seed=10),
        Sampling(temperature=3.0, top_p=0.97, min_p=0.001, seed=11),
        Sampling(temperature=2.0, top_k=5000, top_p=0.99, seed=12),
        Sampling(temperature=1.0, top_p=0.9, seed=13),
        Sampling(temperature=1e-4, top_p=0.9, seed=14),
        Sampling(temperature=4.0, typical_p=0.9, seed=15),
        Sampling(temperature=1.0, typical_p=0.2, top_k=300, top_p=0.9, min_p=0.5, seed=16),
        Sampling(),
    ],
)
def test_equal_logits_draw_equal_tokens_on_the_gpu_and_on_the_cpu(sampling: Sampling) -> None:
    logits = torch.randn(64, 128256, device=CUDA, generator=torch.Generator(CUDA).manual_seed(1)) * 4
    logits[:, 5] = logits[:, 7]
    columns = RowSamplings.of([sampling] * 64, CUDA)
    ids = draw_rows(operations().draw, logits, logits, columns, np.arange(64) + 100)[0]
    on_host = logits.cpu()
    assert ids.tolist() == [choose(row, sampling, 100 + number) for number, row in enumerate(on_host)]


@pytest.mark.parametrize("use", ["project", "onto", "silu", "gelu"])
def test_ways_to_multiply_many_rows_give_what_torch_gives(use: WideUse) -> None:
    """Of numbers of rows, inputs and outputs that fill no tile; the gate in its product is one of them."""
    generator = torch.Generator(CUDA).manual_seed(5)
    weights = (torch.randn(1200, 1000, generator=generator, device=CUDA) / 32).bfloat16()
    from loopwright.engine.cuda import wide_ways  # noqa: PLC0415 (there may be no Triton)

    usual, ways = wide_ways.ways_of(use, weights)
    assert {"silu", "gelu"}.isdisjoint({use}) or ways[0].name == "gated" or torch.cuda.get_device_capability() < (9, 0)
    assert any(way.name == "cuBLASLt 0" for way in ways)
    for num_rows in (130, 5001, 8192):
        vectors = torch.randn(num_rows, 1000, generator=generator, device=CUDA).bfloat16()
        dtype = torch.float32 if use == "onto" else torch.bfloat16
        begun = torch.randn(num_rows, 600 if use in ("silu", "gelu") else 1200, device=CUDA).to(dtype)
        usual(vectors, weights, expected := begun.clone())
        for way in ways:
            if way.waves(num_rows) is not None:
                way.run(vectors, weights, found := begun.clone())
                off = torch.linalg.vector_norm((found - expected).float()) / torch.linalg.vector_norm(expected.float())
                assert off < MOST_OFF, (way.name, num_rows)
