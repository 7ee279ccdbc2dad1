"""A model with recurrent state: whatever becomes of its lines, tokens are those of a plain loop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.errors import ConfigError
from octavo.testing.random_model import make_random_model
from octavo_registry.model import ModelSpec
from recurrent_model import ARCHITECTURE, TinyRecurrent

KINDS = ("rar", "rr")
"""With attention, and without."""
PROMPTS = [[(7 * i + j * j) % 300 + 10 for j in range(5 + 9 * i)] for i in range(6)]
COUNT = 9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_model(
        tmp_path_factory.mktemp("model"), vocab_size=320, max_position_embeddings=256
    )


@pytest.fixture(scope="module", params=KINDS)
def kinds(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def expected(kinds) -> list[list[int]]:
    spec = ModelSpec(
        architecture=ARCHITECTURE,
        config={"vocab_size": 320, "kinds": kinds},
        dtype=torch.float32,
        device=torch.device("cpu"),
        max_model_len=256,
    )
    model = TinyRecurrent(spec)
    return [model.plain_tokens(prompt, COUNT) for prompt in PROMPTS]


@pytest.fixture
def start(folder, kinds):
    started = []

    def start(**options) -> LLM:
        wanted = {
            "dtype": "float32",
            "num_threads": 1,
            "max_num_seqs": 4,
            "hf_overrides": {"architectures": [ARCHITECTURE], "kinds": kinds},
            "plugins": ["recurrent_model"],
            **options,
        }
        started.append(LLM(str(folder), **wanted))
        return started[-1]

    yield start
    for llm in started:
        llm.close()


def run(llm: LLM, prompts=PROMPTS, **more) -> list[list[int]]:
    params = SamplingParams(max_tokens=COUNT, ignore_eos=True, **{"temperature": 0.0, **more})
    prompts = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [output.error for output in outputs] == [None] * len(outputs)
    return [each.token_ids for output in outputs for each in output.outputs]


def stats(llm: LLM) -> dict[str, int]:
    return llm._front.client.call("stats")


def test_tokens_are_those_of_a_plain_loop_alone_and_together(start, expected) -> None:
    llm = start()
    assert [run(llm, [prompt])[0] for prompt in PROMPTS] == expected
    assert run(llm) == expected


def test_chunks_are_of_any_length(start, expected) -> None:
    assert run(start(max_num_batched_tokens=7)) == expected


def test_what_begins_alike_goes_on_from_a_checkpoint(start, expected) -> None:
    llm = start(checkpoint_tokens=16, num_state_lines=32)
    assert run(llm) == expected
    assert stats(llm)["num_prefix_hit_tokens"] == 0
    assert run(llm) == expected
    hits = stats(llm)["num_prefix_hit_tokens"]
    # One is kept behind the longest part only; the last token of a prompt must run.
    assert hits == sum(len(prompt) // 16 * 16 for prompt in PROMPTS if len(prompt) % 16)
    # Behind tokens that were sampled, too.
    first = PROMPTS[1] + expected[1]
    assert run(llm, [[*first, 5]])
    assert stats(llm)["num_prefix_hit_tokens"] == hits + len(first) // 16 * 16


def test_without_prefix_caching_nothing_is_kept(start, expected) -> None:
    llm = start(checkpoint_tokens=16, enable_prefix_caching=False)
    assert run(llm) == run(llm) == expected
    assert stats(llm)["num_prefix_hit_tokens"] == 0


def test_a_family_forks_from_the_state_behind_its_prompt(start, expected) -> None:
    llm = start(max_num_seqs=3)
    family = run(llm, PROMPTS[2:4], n=5, temperature=1.0, seed=3)
    for prompt, index in ((2, 0), (3, 5)):
        for i in range(5):
            llm.reset_prefix_cache()
            assert run(llm, [PROMPTS[prompt]], temperature=1.0, seed=3 + i) == [family[index + i]]


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_sequence_that_was_preempted_goes_on_as_it_was(start, expected, mode, depth, kinds):
    llm = start(preemption_mode=mode, async_depth=depth, checkpoint_tokens=16)
    scheduler = llm._front.client._core._tokens.scheduler
    schedule, steps = scheduler.schedule, []

    def scheduled():
        order = scheduler.running_order()
        if len(steps) % 4 == 3 and len(order):
            scheduler.requeue(scheduler.slot_table.at(int(order[len(steps) % len(order)])))
        steps.append(None)
        return schedule()

    scheduler.schedule = scheduled
    assert run(llm) == expected
    assert stats(llm)["num_preemptions"] > 2
    # With two steps under way a line is further than what the host has seen, and not copied.
    assert (stats(llm)["num_swaps"] > 0) == (mode == "swap" and depth < 3)


def test_as_many_run_as_have_a_line(start, expected) -> None:
    assert run(start(num_state_lines=1)) == expected


def test_options_that_do_not_go_with_its_layers_are_refused(start, kinds, folder) -> None:
    if kinds == "rr":  # attention on a CPU refuses it of itself
        with pytest.raises(ConfigError, match="batch_invariant: recurrent states are computed in"):
            start(batch_invariant=True)
        with pytest.raises(ConfigError, match="kv_cache_dtype: the model keeps no keys"):
            start(kv_cache_dtype="float16")
    with pytest.raises(ConfigError, match="num_state_lines: the model has no recurrent states"):
        LLM(str(folder), num_state_lines=4)
