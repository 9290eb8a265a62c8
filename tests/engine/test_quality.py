"""The quality gate: levels of 8 bits pass on this project's documents, on the CPU's kernels and as a device keeps them;
what loses too much does not."""

import dataclasses
from functools import partial

import pytest
from quality import ACROSS, Texts, Verdict, across, cpu_way, device_way, judge, mcnemar

from kernels_here import needs_kernels
from loopwright.engine.cuda.judged import JUDGEMENTS
from loopwright.weights.store import resolve
from system_rig import SmolLM2


@pytest.mark.model
@needs_kernels
def test_the_cpus_levels_pass_the_gate(smollm2: SmolLM2) -> None:
    ways = {dtype: partial(cpu_way, smollm2.model, dtype) for dtype in ("bfloat16", "int8", "stored")}
    for name, _, found, base in judge(ways, Texts.of(resolve("default").path, 2)):  # one window is noise
        assert Verdict.of(found, base).is_passed, name


@pytest.mark.model
def test_a_devices_8_bits_pass_and_4_bits_of_other_groups_than_the_files_do_not(smollm2: SmolLM2) -> None:
    model, texts = smollm2.model, Texts.of(resolve("default").path, 1, 96)
    ways = {dtype: partial(device_way, model, dtype) for dtype in ("bfloat16", "int8")}
    found = {
        name: (num_bytes, Verdict.of(one, base))
        for name, num_bytes, one, base in judge(
            {**ways, ACROSS: lambda: device_way(across(model), "bfloat16")}, texts
        )
    }  # fmt: skip
    assert found["int8"][0] < 0.56 * found["bfloat16"][0]  # 8 bits and scales, of widths made up to multiples of 128
    assert found["int8"][1].is_passed == JUDGEMENTS["int8"].is_passed
    assert found[ACROSS][1].is_passed == JUDGEMENTS["int4"].is_passed
    assert found[ACROSS][1].kl_mean > 10 * found["int8"][1].kl_mean > 0


def test_mcnemar_is_the_exact_two_sided_test() -> None:
    assert mcnemar(0, 0) == 1
    assert mcnemar(5, 0) == mcnemar(0, 5) == 2 / 32
    assert mcnemar(1, 9) == 2 * 11 / 1024
    assert mcnemar(6, 6) == 1


def test_a_way_fails_by_perplexity_by_divergence_and_by_words_that_it_loses() -> None:
    good = Verdict(loss=0.009, kl_mean=0.009, kl_p99=0.5, lost=8, won=2)
    assert good.is_passed  # p is 0.11
    assert not dataclasses.replace(good, loss=0.011).is_passed
    assert not dataclasses.replace(good, kl_mean=0.011).is_passed
    assert not dataclasses.replace(good, lost=12).is_passed
    assert dataclasses.replace(good, lost=2, won=12).is_passed  # better is no failure
