"""What a preemption must not change, and how those that wait are counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.messages import EngineRequest, GuideRequest, TokenSampling
from octavo.testing.random_model import make_random_model
from octavo_registry import PluginHost

PROMPTS = [[(7 * i + 11 * place) % 290 + 5 for place in range(20 + i)] for i in range(6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_model(tmp_path_factory.mktemp("model"), vocab_size=320)


def small(folder: Path, **options: Any) -> LLM:
    settings = {"dtype": "float32", "num_threads": 1, "max_num_seqs": 6, "max_model_len": 112}
    return LLM(folder, **{**settings, **options})


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_log_probabilities_of_prompts_outlive_a_preemption(folder: Path, mode: str) -> None:
    params = SamplingParams(
        temperature=0.0, max_tokens=40, ignore_eos=True, prompt_logprobs=2, logprobs=1
    )
    with small(folder, num_blocks=64) as llm:
        expected = llm.generate(PROMPTS, params, use_tqdm=False)
    with small(folder, num_blocks=9, preemption_mode=mode) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    assert sum(output.metrics.num_preemptions for output in outputs) > 3
    for output, wanted in zip(outputs, expected, strict=True):
        assert output.outputs[0].token_ids == wanted.outputs[0].token_ids
        assert output.prompt_logprobs is not None
        assert wanted.prompt_logprobs is not None
        assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
        assert [each and [*each] for each in output.prompt_logprobs] == [
            each and [*each] for each in wanted.prompt_logprobs
        ]
        assert len(output.outputs[0].logprobs or []) == 40


def test_a_prefix_is_looked_up_once_for_a_request_however_often_it_is_preempted(
    folder: Path,
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    with small(folder, num_blocks=9) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        stats = llm._front.client.call("stats")
    assert stats["num_preemptions"] > 3
    assert stats["num_prefix_query_tokens"] == sum(map(len, PROMPTS))
    cached = sum(output.metrics.num_cached_tokens for output in outputs)
    assert stats["num_prefix_hit_tokens"] == cached


@pytest.fixture
def core() -> Iterator[EngineCore]:
    config = EngineConfig(
        model=ModelConfig(model="octavo/tiny", num_threads=1),
        cache=CacheConfig(num_blocks=80),
        scheduler=SchedulerConfig(max_num_seqs=4),
    )
    core = EngineCore(config, PluginHost.discover())
    yield core
    core.close()


def request(first: int, count: int, guide: GuideRequest | None = None) -> EngineRequest:
    return EngineRequest(
        request_id=str(first),
        sequences=tuple(range(first, first + count)),
        prompt_token_ids=[5, 6, 7],
        sampling=TokenSampling(seed=1, max_tokens=8),
        guide=guide,
    )


def test_all_that_have_no_slot_are_counted_as_waiting(core: EngineCore) -> None:
    def counts() -> tuple[int, int]:
        stats = core.stats()
        return stats["num_running"], stats["num_waiting"]

    guide = GuideRequest(backend="llguidance", kind="regex", value='"[ab]{8,90}"')
    core.add([request(0, 3), request(10, 1), request(20, 2, guide)])
    assert counts() == (0, 6)
    seen = set()
    while core.has_work:
        core.step()
        running, waiting = counts()
        seen.add(running)
        assert running + waiting <= 6
    assert counts() == (0, 0)
    assert max(seen) == 4
