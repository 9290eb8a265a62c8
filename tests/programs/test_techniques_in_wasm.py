"""The programs whose definitions other files hold, in the Wasm sandbox: the same as natively, for the same seed."""

from typing import Any

import pytest
from script_rig import UNEXPORT

from system_rig import byte_system, in_loop, program_source

SHORT: dict[str, dict[str, Any]] = {
    "attention_sink": {"max_tokens": 40, "window": 20},
    "beam_search": {"beams": 2, "max_tokens": 4, "pattern": "[a-z]+"},
    "best_of_n": {"n": 2, "max_tokens": 4},
    "cascade": {"max_tokens": 3},
    "constrained_choice": {},
    "context_compaction": {"max_tokens": 4},
    "contrastive_decoding": {"max_tokens": 3},
    "draft_speculation": {"max_tokens": 8},
    "grammar_in_program": {"max_tokens": 6},
    "graph_of_thought": {"max_tokens": 3},
    "guidance": {"max_tokens": 3},
    "hierarchical_attention": {"max_tokens": 4},
    "jacobi": {"max_tokens": 8},
    "mcts": {"simulations": 3, "max_tokens": 4},
    "modular_caching": {"max_tokens": 4},
    "ngram_speculation": {"max_tokens": 8},
    "output_validation": {},
    "prefix_caching": {"max_tokens": 4},
    "prefix_tree": {"max_tokens": 3},
    "recursion_of_thought": {"max_depth": 1, "max_tokens": 4},
    "recursive_reader": {"text": "abc " * 9, "question": "?", "slice_chars": 12, "max_calls": 3, "max_tokens": 3},
    "reflexion": {"max_trials": 2, "max_tokens": 4},
    "self_consistency": {"paths": 2, "max_tokens": 4},
    "skeleton_of_thought": {"points": 2, "max_tokens": 4},
    "swarm": {"role": 0, "max_tokens": 4},
    "tool_spec_drop": {"max_tokens": 4},
    "tree_of_thought": {"branches": 1, "max_tokens": 4},
    "watermark": {"max_tokens": 8},
    "windowed_attention": {"max_tokens": 40, "window": 20},
}


@pytest.mark.wasm
def test_each_technique_gives_in_the_sandbox_what_it_gives_natively() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            for name, arguments in SHORT.items():
                native = await system.run(program_source(name), seed=3, **arguments)
                wasm = await system.run(program_source(name), "wasm", seed=3, **arguments)
                assert wasm.result == native.result, name
            assert (await system.run(UNEXPORT)).result == 2  # lent by the one sandbox, imported in the other

    in_loop(scenario)
