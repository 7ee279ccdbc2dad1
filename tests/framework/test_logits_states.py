"""Logits processors with a state: preemption, refusals before and after queueing, NaN."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.errors import ParameterError, PluginError
from octavo.testing.random_model import make_random_model
from octavo_registry import LazyRegistry, OctavoError, PluginFailure, hookimpl

VOCAB = 320


class Counting:
    """Makes output token i the id i plus the prompt's first, by what it was attached with."""

    def __init__(self, vocab_size, device) -> None:
        self.next: dict[int, int] = {}
        self.attached: list[tuple[int, int]] = []

    @staticmethod
    def validate(extra_args) -> None:
        if extra_args.get("first") == "refused":
            raise OctavoError("first must be a number")
        if extra_args.get("first") == "answered":
            return "no"
        if extra_args.get("first") == "broken":
            raise KeyError("first")

    def attach(self, slot, extra_args, prompt_token_ids, output_token_ids) -> None:
        if extra_args.get("late"):
            raise OctavoError("too late")
        made.attached.append((len(prompt_token_ids), len(output_token_ids)))
        self.next[slot] = prompt_token_ids[0] + len(output_token_ids)

    def detach(self, slot) -> None:
        del self.next[slot]

    def apply(self, logits_RV, slots_R):
        for row, slot in enumerate(slots_R.tolist()):
            logits_RV[row, self.next[slot] % VOCAB] = 1e4
            self.next[slot] += 1
        return logits_RV


class Following:
    """Makes each token the last one plus one, by the tokens so far alone."""

    def __init__(self, vocab_size, device) -> None: ...

    def attach(self, slot, extra_args) -> None: ...

    def detach(self, slot) -> None: ...

    def apply(self, logits_RV, slots_R, so_far):
        last_R = so_far.tokens_SL[slots_R, so_far.num_tokens_S[slots_R].long() - 1]
        logits_RV[torch.arange(len(slots_R)), (last_R.long() + 1) % VOCAB] = 1e4
        return logits_RV


class Spoiling:
    """Leaves a request's row what it asks for in the place of all logits, or of one."""

    def __init__(self, vocab_size, device) -> None:
        self.values: dict[int, dict] = {}

    def attach(self, slot, extra_args) -> None:
        self.values[slot] = extra_args

    def detach(self, slot) -> None:
        del self.values[slot]

    def apply(self, logits_RV, slots_R):
        for row, slot in enumerate(slots_R.tolist()):
            if "all" in self.values[slot]:
                logits_RV[row] = float(self.values[slot]["all"])
            if "one" in self.values[slot]:
                logits_RV[row, 7] = float(self.values[slot]["one"])
        return logits_RV


made = SimpleNamespace(attached=[], failures=[])


class Plugin:
    OCTAVO_API = "1"

    @hookimpl
    def register_logits_processors(self, processors: LazyRegistry) -> None:
        for name in ("Counting", "Following", "Spoiling"):
            processors.add(name, f"states_of_this_test:{name}")

    @hookimpl
    def plugin_failed(self, failure: PluginFailure) -> None:
        made.failures.append((failure.plugin, failure.call))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder: Path = tmp_path_factory.mktemp("model")
    make_random_model(folder, vocab_size=VOCAB, num_hidden_layers=1, max_position_embeddings=64)
    targets = SimpleNamespace(Counting=Counting, Following=Following, Spoiling=Spoiling)
    sys.modules["states_of_this_test"] = targets
    yield folder
    del sys.modules["states_of_this_test"]


def engine(folder: Path, *processors: str, **options: object) -> LLM:
    return LLM(
        str(folder),
        plugins=[Plugin()],
        logits_processors=processors,
        dtype="float32",
        num_threads=1,
        **options,
    )


@pytest.mark.parametrize("processor", ["Counting", "Following"])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_state_survives_preemption(folder: Path, processor: str, mode: str) -> None:
    made.attached.clear()
    memory = {"num_blocks": 8, "block_size": 16, "max_model_len": 64}
    with engine(folder, processor, preemption_mode=mode, max_num_seqs=4, **memory) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
        outputs = llm.generate([[start] for start in (10, 90, 170)], params, use_tqdm=False)
    first = 0 if processor == "Counting" else 1
    assert sum(output.metrics.num_preemptions for output in outputs) > 0
    for output, start in zip(outputs, (10, 90, 170), strict=True):
        assert output.outputs[0].token_ids == [start + first + i for i in range(40)]
    if processor == "Counting":
        assert {num_prompt for num_prompt, _ in made.attached} == {1}
        assert any(num_output > 0 for _, num_output in made.attached)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with engine(folder, "Counting", "Spoiling", max_num_seqs=3) as llm:
        yield llm


def generate(llm: LLM, *args: dict) -> list:
    params = [SamplingParams(temperature=0.0, max_tokens=2, extra_args=each) for each in args]
    return llm.generate([[5, 6]] * len(args), params, use_tqdm=False)


def test_a_processor_refuses_a_request_before_it_is_queued(llm: LLM) -> None:
    with pytest.raises(ParameterError, match="first must be a number") as refused:
        generate(llm, {"first": "refused"})
    assert refused.value.param == "extra_args"


@pytest.mark.parametrize(
    ("first", "shown"), [("broken", "KeyError: 'first'"), ("answered", "it returned str, not None")]
)
def test_a_validate_that_breaks_is_no_mistake_of_the_client(llm: LLM, first, shown) -> None:
    with pytest.raises(PluginError, match=shown) as failed:
        generate(llm, {"first": first})
    assert "plugin 'Plugin' failed in logits processor 'Counting', validate" in str(failed.value)


def test_what_attach_refuses_is_the_client_s_and_hurts_no_other(llm: LLM) -> None:
    assert llm._front.host.settle_events()
    made.failures.clear()
    refused, other = generate(llm, {"late": True}, {})
    assert (refused.error, refused.error_type) == ("too late", "ParameterError")
    assert (other.error, other.outputs[0].token_ids) == (None, [5, 6])
    assert llm._front.host.settle_events()
    assert made.failures == []


@pytest.mark.parametrize("spoilt", [{"one": "nan"}, {"all": "nan"}, {"all": "-inf"}])
def test_logits_that_nothing_can_be_drawn_by_end_their_request(llm: LLM, spoilt: dict) -> None:
    assert llm._front.host.settle_events()
    made.failures.clear()
    first, failed, last = generate(llm, {}, spoilt, {})
    assert "plugin 'Plugin' failed in logits processor 'Spoiling', apply" in failed.error
    assert "NaN" in failed.error
    assert (failed.error_type, failed.outputs[0].token_ids) == ("PluginError", [])
    assert failed.outputs[0].finish_reason == "error"
    assert [o.outputs[0].token_ids for o in (first, last)] == [[5, 6]] * 2
    assert llm._front.host.settle_events()
    assert made.failures == [("Plugin", "logits processor 'Spoiling', apply")]


def test_an_infinite_logit_forces_its_token(llm: LLM) -> None:
    (forced,) = generate(llm, {"one": math.inf})
    assert forced.outputs[0].token_ids == [7, 7]
