"""The engine on a real small model: asynchronous steps, isolation, preemption, prefixes, order."""

from __future__ import annotations

import logging
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from octavo import LLM, SamplingParams
from octavo.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.engine import core as engine_core
from octavo.engine.core import EngineCore
from octavo.messages import EngineRequest, TokenSampling
from octavo.observability.engine_metrics import read_report
from octavo.steps.slot_fields import FIELDS
from octavo.testing.random_model import make_random_model
from octavo_registry import (
    EngineFacts,
    LazyRegistry,
    ModelCapabilities,
    PluginHost,
    RequestOutcome,
    hookimpl,
)

POISON = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_random_model(path, vocab_size=320, num_hidden_layers=2, max_position_embeddings=256)
    return path


class FragileModels:
    """A plugin whose Llama raises on one token."""

    OCTAVO_API = "1"

    @hookimpl
    def register_models(self, models: LazyRegistry) -> None:
        models.add("FragileLlama", "fragile_llama:FragileLlama", capabilities=ModelCapabilities())


@pytest.fixture
def make_core(folder: Path) -> Iterator[Callable[..., EngineCore]]:
    cores = []

    def make(host: PluginHost | None = None, **options) -> EngineCore:
        model = {k: options.pop(k) for k in list(options) if k in ("hf_overrides", "max_model_len")}
        cache = {
            k: options.pop(k)
            for k in list(options)
            if k in ("num_blocks", "block_size", "enable_prefix_caching", "swap_gib")
        }
        config = EngineConfig(
            model=ModelConfig(model=str(folder), dtype="float32", num_threads=1, **model),
            cache=CacheConfig(**cache),
            scheduler=SchedulerConfig(**options),
        )
        cores.append(EngineCore(config, host or PluginHost.discover()))
        return cores[-1]

    yield make
    for core in cores:
        core.close()


def request(number: int, prompt: list[int], max_tokens: int = 8, **fields) -> EngineRequest:
    sampling = {k: fields.pop(k) for k in list(fields) if k in ("logprobs", "stop_token_ids")}
    n = fields.pop("n", 1)
    return EngineRequest(
        request_id=f"r{number}",
        sequences=tuple(number * 100 + i for i in range(n)),
        prompt_token_ids=prompt,
        sampling=TokenSampling(seed=number, temperature=0.0, max_tokens=max_tokens, **sampling),
        **fields,
    )


def finish(core: EngineCore) -> tuple[dict[int, list[int]], dict[int, tuple[str, str | None]]]:
    tokens: dict[int, list[int]] = {}
    ends: dict[int, tuple[str, str | None]] = {}
    while core.has_work:
        outputs = core.step()
        for sequence, new in outputs.by_sequence():
            tokens.setdefault(sequence, []).extend(new)
        for end in outputs.ends:
            ends[end.sequence] = (end.reason, end.error)
    assert core.stats()["num_live_blocks"] == 0
    return tokens, ends


def prompts(count: int, low: int = 4, high: int = 60) -> list[list[int]]:
    rng = random.Random(count)
    return [[rng.randrange(10, 290) for _ in range(rng.randint(low, high))] for _ in range(count)]


def test_the_next_step_is_launched_before_the_last_one_is_read(make_core):
    core = make_core()
    events = []
    submit = core._executor.submit

    def watched(plan):
        events.append(("launch", plan.step_id))
        pending = submit(plan)

        def result():
            events.append(("read", plan.step_id))
            return pending.result()

        return SimpleNamespace(result=result, ends_within=pending.ends_within)

    core._executor.submit = watched
    core.add([request(1, [5, 6, 7], max_tokens=6)])
    finish(core)
    for step in range(1, 5):
        assert events.index(("launch", step + 1)) < events.index(("read", step))


def test_a_steady_step_sends_no_state_but_new_blocks(make_core):
    core = make_core(block_size=16)
    plans = []
    submit = core._executor.submit
    core._executor.submit = lambda plan: plans.append(plan) or submit(plan)
    core.add([request(i, prompt, 40) for i, prompt in enumerate(prompts(12, 30, 30), 1)])
    finish(core)
    changed = [plan.sizes.diff_indices for plan in plans]
    # The first step brings the rows in; later ones only the 12 rows' next blocks of 16 tokens.
    assert changed[0] >= 12 * (30 + sum(field.width == 1 for field in FIELDS))
    assert sorted(set(changed[1:])) == [0, 12]
    assert sum(changed[1:]) == 12 * 3


def test_a_request_that_makes_the_batch_raise_fails_alone(make_core, folder, monkeypatch, caplog):
    from octavo_plugins.models.llama.model import Llama

    class FragileLlama(Llama):
        def embed(self, tokens_T, media):
            if (tokens_T == POISON).any():
                raise RuntimeError("token 300 is more than this model can bear")
            return super().embed(tokens_T, media)

    monkeypatch.setitem(sys.modules, "fragile_llama", SimpleNamespace(FragileLlama=FragileLlama))
    host = PluginHost.discover(plugins=[FragileModels()])
    alone, _ = finish_of(make_core(), prompts(10))
    core = make_core(host, hf_overrides={"architectures": ["FragileLlama"]})
    healthy = [request(i, prompt) for i, prompt in enumerate(prompts(10), 1)]
    culprits = [request(50, [5, POISON, 6]), request(51, [POISON], n=3)]
    core.add(healthy[:4])
    core.step()
    core.add([*culprits, *healthy[4:]])
    tokens, ends = finish(core)
    assert "KV cache is full" not in caplog.text
    for culprit in (5000, 5100, 5101, 5102):
        reason, error = ends.pop(culprit)
        assert reason == "error"
        what = "RuntimeError: token 300 is more than this model can bear"
        assert error == f"plugin 'FragileModels' failed in a step: {what}"
    assert {reason for reason, _ in ends.values()} == {"length"}
    assert tokens == alone
    # The engine goes on as if nothing had been.
    core.add([request(60, [5, 6, 7])])
    assert finish(core)[1] == {6000: ("length", None)}


def finish_of(core: EngineCore, all_prompts: list[list[int]], max_tokens: int = 8):
    core.add([request(i, prompt, max_tokens) for i, prompt in enumerate(all_prompts, 1)])
    return finish(core)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_sixty_four_requests_finish_in_a_pool_of_little_more_than_one(make_core, mode, caplog):
    expected, _ = finish_of(make_core(enable_prefix_caching=False), prompts(64), 40)
    core = make_core(num_blocks=9, max_model_len=112, preemption_mode=mode, max_num_seqs=16)
    with caplog.at_level(logging.WARNING):
        tokens, ends = finish_of(core, prompts(64), 40)
    assert tokens == expected
    assert len(ends) == 64
    stats = core.stats()
    assert stats["num_preemptions"] > 0
    assert (stats["num_swaps"] > 0) == (mode == "swap")
    assert "1 preemptions so far; raise num_blocks, or lower max_num_seqs" in caplog.text


def test_an_abort_at_any_moment_frees_everything(make_core):
    core = make_core(max_num_batched_tokens=16)
    for steps in range(8):
        core.add([request(i, prompt, n=2) for i, prompt in enumerate(prompts(6), 1)])
        for _ in range(steps):
            core.step()
        core.abort([i * 100 + k for i in range(1, 7) for k in range(2)])
        tokens, ends = finish(core)
        assert (tokens, ends) == ({}, {})


def test_a_prefix_is_computed_once_and_a_salt_keeps_it_apart(make_core):
    core = make_core()
    prompt = prompts(1, 60, 60)[0]
    first, _ = finish_of(core, [prompt])
    assert core.stats()["num_prefix_hit_tokens"] == 0
    second, _ = finish_of(core, [prompt])
    assert core.stats()["num_prefix_hit_tokens"] == 48
    assert first == second
    core.add([request(1, prompt, cache_salt="other")])
    finish(core)
    assert core.stats()["num_prefix_hit_tokens"] == 48
    core.call("reset_prefix_cache")
    assert core.stats()["num_cached_blocks"] == 0
    finish_of(core, [prompt])
    assert core.stats()["num_prefix_hit_tokens"] == 48


def test_continuations_share_the_prompts_blocks(make_core):
    core = make_core(enable_prefix_caching=False)
    core.add([request(1, prompts(1, 70, 70)[0], 4, n=8)])
    most = 0
    while core.has_work:
        core.step()
        most = max(most, core.stats()["num_live_blocks"])
    # 4 full blocks shared, a fifth of its own for each.
    assert most == 4 + 8


def test_priority_runs_the_lower_number_first(make_core):
    core = make_core(max_num_seqs=1, scheduling_policy="priority", async_depth=1)
    core.add(
        [request(1, [5], priority=5), request(2, [6], priority=0), request(3, [7], priority=3)]
    )
    order = []
    while core.has_work:
        order += [end.sequence // 100 for end in core.step().ends]
    assert order == [2, 3, 1]


def test_a_full_queue_refuses_and_the_queued_ones_go_on(make_core):
    core = make_core(max_queued_requests=3)
    core.add([request(i, [5, 6]) for i in range(1, 6)])
    _, ends = finish(core)
    assert [ends[i * 100][0] for i in range(1, 6)] == ["length"] * 3 + ["error"] * 2
    assert "queue is full" in (ends[400][1] or "")
    core = make_core(max_queued_tokens=5)
    core.add([request(1, [5] * 4), request(2, [5] * 4)])
    assert "prompt tokens would wait" in (finish(core)[1][200][1] or "")


class Listener:
    """A plugin that hears what the engine and its clients tell."""

    OCTAVO_API = "1"

    def __init__(self) -> None:
        self.told: list[EngineFacts] = []
        self.outcomes: list[RequestOutcome] = []

    @hookimpl
    def engine_started(self, facts: EngineFacts) -> None:
        self.told.append(facts)

    @hookimpl
    def request_finished(self, outcome: RequestOutcome) -> None:
        self.outcomes.append(outcome)
        raise RuntimeError("a listener's failure is its own")


def test_plugins_hear_of_the_start_and_of_every_end(folder):
    listener = Listener()
    options = {"num_blocks": 6, "max_model_len": 80, "enable_prefix_caching": False}
    with LLM(str(folder), dtype="float32", plugins=[listener], **options) as llm:
        params = SamplingParams(n=2, temperature=0.0, max_tokens=40, ignore_eos=True)
        (output,) = llm.generate({"prompt_token_ids": [9] * 30}, params, use_tqdm=False)
    assert [facts.num_blocks for facts in listener.told] == [6]
    (outcome,) = listener.outcomes
    assert outcome.finish_reasons == ("length", "length")
    assert (outcome.num_prompt_tokens, outcome.num_output_tokens) == (30, 80)
    # Two rows of 70 tokens do not fit 5 blocks together: one has had to wait.
    assert outcome.num_preemptions == output.metrics.num_preemptions > 0
    assert 0 < (outcome.seconds_to_first_token or 0) < outcome.seconds


def test_a_report_says_how_long_a_request_waited_and_was_prefilled(make_core):
    core = make_core(max_num_seqs=1, max_num_batched_tokens=16)
    core.add([request(i, prompt, max_tokens=3) for i, prompt in enumerate(prompts(2, 50, 50), 1)])
    reports = []
    while core.has_work:
        reports += core.step().prompts
    first, second = reports
    assert 0 <= first.seconds_in_queue < second.seconds_in_queue
    assert min(first.seconds_in_prefill, second.seconds_in_prefill) > 0
    # The second one waited for all of the first one's prefill at least.
    assert second.seconds_in_queue > first.seconds_in_prefill


def test_the_metrics_utility_counts_what_steps_computed(make_core):
    core = make_core(max_num_batched_tokens=16)
    finish_of(core, prompts(1, 40, 40), 5)
    report = read_report(core.call("metrics"))
    values = {metric.name: metric.values[0][1] for metric in report.engine}
    steps = values["iteration_tokens_total"]
    assert steps.sum >= 40 + 4
    assert sum(steps.counts) >= 3 + 4
    assert values["num_requests_running"] == values["num_requests_waiting"] == 0
    assert values["kv_cache_usage_perc"] == 0
    assert values["prefix_cache_queries_total"] == 40
    assert not report.is_elsewhere
    assert {labels[0] for metric in report.plugins for labels, _ in metric.values}


def slow_layers(core: EngineCore, seconds: float, hung: threading.Event | None = None) -> None:
    """Each layer of the model takes so long; where it hangs, until that is set."""

    def wait(layer: object, args: object) -> None:
        time.sleep(seconds)
        if hung is not None:
            hung.wait()

    for layer in core._executor._worker.runner.model.model.layers.values():
        layer.register_forward_pre_hook(wait)


def test_a_long_step_on_a_cpu_tells_of_its_layers_and_takes_messages(make_core, monkeypatch):
    monkeypatch.setattr(engine_core, "PROGRESS_SECONDS", 0.05)
    core = make_core()
    core.add([request(0, range(5, 45), max_tokens=1)])
    slow_layers(core, 0.3)
    steps = [core.step()]
    while not steps[-1].ends:
        core.add([request(len(steps), [7, 8], max_tokens=1)])
        steps.append(core.step())
    assert len(steps) >= 3, "nothing was told while the layers ran"
    assert [step.sequences for step in steps if step.sequences] == [[0]]
    core.abort(list(range(len(steps))))


def test_a_layer_that_hangs_on_a_cpu_tells_nothing(make_core, monkeypatch):
    monkeypatch.setattr(engine_core, "PROGRESS_SECONDS", 0.02)
    core = make_core()
    core.add([request(0, range(5, 45), max_tokens=1)])
    hung = threading.Event()
    slow_layers(core, 0.0, hung)
    told = []
    stepping = threading.Thread(target=lambda: [told.append(core.step()) for _ in range(3)])
    stepping.start()
    time.sleep(0.4)
    count = len(told)
    hung.set()
    stepping.join()
    assert count <= 2, "a step with a hung layer was said to go on"
    assert len(told) == 3
