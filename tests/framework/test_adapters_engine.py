"""Requests of many adapters and of none in one engine, each against weights merged by hand."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch

from octavo.adapters.packed import pack
from octavo.engine.core import EngineCore
from octavo.layers.adapted import AdapterRows
from octavo.layers.adapted_linear import AdaptedLinear
from octavo.layers.embedding import VocabParallelEmbedding
from octavo.messages import EngineRequest, SequenceEnd, TokenSampling
from octavo.steps.loads import AdapterLoad
from octavo.testing.adapters import MISTAKES, RANKS, AdaptedReference, with_adapters
from octavo.testing.comparison import compare
from octavo.testing.engine_run import Tokens
from octavo.testing.model import make_trial
from octavo.testing.modes import MODES, Trial, alone, engine_config, in_a_batch, teacher_forced
from small_models import HOST, cases_of

CASES = cases_of("LlamaForCausalLM")
PROMPT = tuple(range(7, 55))
ALL_MODES = {"at every position": teacher_forced, "alone": alone, **MODES}


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    (architecture, _), variant = next(iter(CASES.items()))
    plain = make_trial(HOST, architecture, variant, tmp_path_factory.mktemp("llama"))
    return with_adapters(plain, RANKS, num_rank_rows=sum(RANKS))


def test_a_batch_of_several_ranks_and_none_equals_merged_weights(trial: Trial) -> None:
    comparison = in_a_batch(trial)
    assert comparison.passed, comparison.as_text()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ALL_MODES.values(), ids=ALL_MODES)
def test_they_are_equal_in_whatever_way_the_engine_runs(mode, trial: Trial) -> None:
    comparison = mode(trial)
    assert comparison.passed, comparison.as_text()


def test_tokens_are_grouped_then_embedded_then_multiplied(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels of linears read groups that are ``settled`` while what is before them still runs."""
    order: list[str] = []

    def note(kind: type, method: str) -> None:
        whole = getattr(kind, method)

        def noted(*args: Any) -> Any:
            order.append(kind.__name__)
            return whole(*args)

        monkeypatch.setattr(kind, method, noted)

    note(AdapterRows, "begin")
    note(VocabParallelEmbedding, "forward")
    note(AdaptedLinear, "apply")
    with trial.engine() as engine:
        engine.generate([trial.prompts[1]], max_tokens=1)
    assert order[:3] == ["AdapterRows", "VocabParallelEmbedding", "AdaptedLinear"]


def test_more_adapters_than_the_pool_holds_take_turns(trial: Trial) -> None:
    """Rank 256 leaves no row to the others."""
    options = {**trial.options, "lora_pool_rank": 256, "max_num_seqs": 4}
    with replace(trial, options=options).engine() as engine:
        found = engine.generate(trial.prompts, max_tokens=12)
        assert engine.count("num_adapter_loads") > len(RANKS)
        assert engine.count("num_device_adapters") <= 2
    comparison = compare(found, trial.reference)
    assert comparison.passed, comparison.as_text()


class Traffic:
    """An engine of the trial's, its requests, and what each has got; ``ends`` are in their order.

    ``adapters`` are packed, by content hash; the engine has none at first.
    """

    def __init__(self, trial: Trial, **options: Any) -> None:
        config = engine_config(trial.folder, **{**trial.options, **options})
        self.core = EngineCore(config, trial.host)
        facts = self.core.ready.adapters
        assert facts is not None
        self.adapters = {it.content_hash: pack(it, facts.dtype) for it in trial.adapters}
        self.requests: list[EngineRequest] = []
        self.got: dict[int, list[int]] = {}
        self.ends: dict[int, SequenceEnd] = {}

    def __enter__(self) -> Traffic:
        return self

    def __exit__(self, *error: object) -> None:
        self.core.close()

    def ask(self, prompt: Tokens, content_hash: str, max_tokens: int) -> int:
        number = len(self.requests)
        self.requests.append(
            EngineRequest(
                request_id=str(number),
                sequences=(number,),
                prompt_token_ids=list(prompt),
                sampling=TokenSampling(temperature=0.0, seed=0, max_tokens=max_tokens),
                adapter=content_hash,
            )
        )
        self.got[number] = []
        self.core.add([self.requests[number]])
        return number

    def step(self) -> None:
        outputs = self.core.step()
        for sequence, tokens in outputs.by_sequence():
            self.got[sequence] += tokens
        self.ends |= {end.sequence: end for end in outputs.ends}

    def drain(self) -> None:
        while self.core.has_work:
            self.step()

    def wrong(self, trial: Trial) -> list[int]:
        """Requests whose tokens are not their adapter's greedy ones."""
        assert isinstance(trial.reference, AdaptedReference)
        wrong = []
        for content_hash, reference in trial.reference.references.items():
            asked = [r for r in self.requests if r.adapter == content_hash]
            asked = [r for r in asked if self.got[r.sequences[0]]]
            if not asked:
                continue
            tokens = [(*r.prompt_token_ids, *self.got[r.sequences[0]]) for r in asked]
            for request, logprobs in zip(asked, reference.logprobs(tokens), strict=True):
                best = logprobs[len(request.prompt_token_ids) - 1 :].argmax(axis=1).tolist()
                if best != self.got[request.sequences[0]]:
                    wrong.append(request.sequences[0])
        return wrong


def test_those_without_an_adapter_pass_those_that_wait_for_rank_rows(trial: Trial) -> None:
    """The second of two adapters waits for the first; a request behind it does not."""
    with Traffic(trial, lora_pool_rank=256) as traffic:
        first, second = list(traffic.adapters)[1:]
        for content_hash, max_tokens in ((second, 20), (first, 5), ("", 5), (second, 5)):
            if content_hash and content_hash not in (r.adapter for r in traffic.requests):
                traffic.core.add_adapter(traffic.adapters[content_hash])
            traffic.ask(PROMPT, content_hash, max_tokens)
        traffic.drain()
        assert list(traffic.ends) == [2, 3, 0, 1]
        assert traffic.wrong(trial) == []


def test_a_prefix_is_never_shared_with_another_adapter(trial: Trial) -> None:
    """The same prompt with each, one after the other; only with its own is the second one short."""
    with Traffic(trial) as traffic:
        for adapter in traffic.adapters.values():
            traffic.core.add_adapter(adapter)
        hits = []
        for content_hash in ["", *traffic.adapters] * 2:
            before = traffic.core.stats()["num_prefix_hit_tokens"]
            traffic.ask(PROMPT, content_hash, 6)
            traffic.drain()
            hits.append(traffic.core.stats()["num_prefix_hit_tokens"] - before)
        assert hits[:4] == [0] * 4
        assert min(hits[4:]) >= 16
        assert traffic.wrong(trial) == []


def test_unloading_lets_what_waits_and_runs_finish_and_takes_no_more(trial: Trial) -> None:
    with Traffic(trial, max_num_seqs=1) as traffic:
        content_hash, adapter = next(iter(traffic.adapters.items()))
        traffic.core.add_adapter(adapter)
        traffic.ask(PROMPT, content_hash, 20)
        traffic.ask(PROMPT[:9], content_hash, 20)
        for _ in range(5):
            traffic.step()
        traffic.core.remove_adapter(content_hash)
        late = traffic.ask(PROMPT, content_hash, 20)
        traffic.drain()
        assert [len(tokens) for tokens in traffic.got.values()] == [20, 20, 0]
        assert "unloaded" in str(traffic.ends[late].error)
        assert traffic.wrong(trial) == []
        assert traffic.core.stats()["num_adapters"] == 0


def test_a_step_that_raises_leaves_no_adapter_half_copied(trial: Trial) -> None:
    """The copy into one linear fails once, with the rows before it already overwritten."""
    with Traffic(trial) as traffic:
        for adapter in traffic.adapters.values():
            traffic.core.add_adapter(adapter)
        load, failures = AdapterRows.load, iter([True])

        def failing(self: AdapterRows, wanted: AdapterLoad) -> None:
            if next(failures, False):
                raise RuntimeError("no memory")
            load(self, wanted)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(AdapterRows, "load", failing)
            for content_hash in ("", *traffic.adapters):
                traffic.ask(PROMPT, content_hash, 12)
            traffic.drain()
        assert [end.reason for end in traffic.ends.values()] == ["length"] * 4
        assert traffic.wrong(trial) == []


@pytest.mark.slow
def test_hundreds_of_cycles_of_loading_and_unloading_leave_nothing_behind(trial: Trial) -> None:
    """Under traffic, each with other requests under way; every answer is its adapter's."""
    with Traffic(trial, lora_pool_rank=280, max_num_seqs=6, num_blocks=120) as traffic:
        hashes = list(traffic.adapters)
        sizes = []
        for cycle in range(200):
            content_hash = hashes[cycle % 3]
            traffic.core.add_adapter(traffic.adapters[content_hash])
            traffic.ask(PROMPT[cycle % 20 :], content_hash, 2 + cycle % 5)
            traffic.ask(PROMPT[cycle % 7 :], "", 2)
            for _ in range(cycle % 4):
                traffic.step()
            traffic.core.remove_adapter(content_hash)
            if cycle % 50 == 49:
                traffic.drain()
                gc.collect()
                stats = traffic.core.stats()
                assert (stats["num_adapters"], stats["num_live_blocks"]) == (0, 0)
                sizes.append(sum(type(it) is torch.Tensor for it in gc.get_objects()))
        assert len(traffic.ends) == 400
        assert {end.reason for end in traffic.ends.values()} == {"length"}
        assert traffic.wrong(trial) == []
        assert stats["num_adapter_loads"] > 60
        assert sizes[-1] <= sizes[0]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_comparison_notices_mistakes(mistake: str, trial: Trial) -> None:
    """In every request that they touch."""
    comparison = in_a_batch(MISTAKES[mistake](trial))
    first = trial.adapters[0].content_hash
    touched = [prompt for prompt in trial.prompts if trial.adapter_of(prompt) == first]
    assert len(comparison.problems) >= len(touched) > 0
