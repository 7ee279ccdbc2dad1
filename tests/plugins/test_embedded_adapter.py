"""octavo/tiny-pirate: found by its name, the model's facts in its own words, PEFT's tokens."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from examples.train_tiny.heldout import capital_cases, cases
from examples.train_tiny_adapter.evaluate import BAR, Pair, by_kind, pairs, score
from transformers import AutoModelForCausalLM

from octavo import LLM, LoRARequest, SamplingParams
from octavo.adapters.library import AdapterLibrary
from octavo.errors import AdapterError, ConfigError, UnknownAdapterError
from octavo.testing.random_model import make_random_model
from octavo.weights import find_model
from octavo_plugins.sources.embedded.resolver import ADAPTERS
from octavo_plugins.sources.embedded.source import MODELS
from octavo_registry import PluginHost
from octavo_registry.adapters import AdapterFolders

NAME = "octavo/tiny-pirate"
PIRATE = LoRARequest(NAME)
MAX_BYTES = 600_000
GREEDY = SamplingParams(temperature=0.0, max_tokens=60, logprobs=1)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("octavo/tiny", dtype="float32", enable_lora=True) as llm:
        yield llm


def wrong(found: list[Pair]) -> str:
    return "\n".join(f"{p.base.text!r} -> {p.pirate.text!r}" for p in found if not p.right)


def questions(count: int) -> list[dict[str, str]]:
    """Held-out ones of several kinds."""
    asked = [case.turns[0].content for case in cases() if len(case.turns) == 1]
    return [{"role": "user", "content": text} for text in asked[:: len(asked) // count][:count]]


def told(llm: LLM, chats: list[Any], adapters: Any) -> list[Any]:
    outputs = llm.chat(chats, GREEDY, lora_request=adapters, use_tqdm=False)
    return [output.outputs[0] for output in outputs]


def logprobs(completion: Any) -> list[float]:
    return [max(entry.logprob for entry in each.values()) for each in completion.logprobs]


@pytest.mark.parametrize("allowed", [(), None], ids=["from a request", "from the operator"])
def test_it_is_found_by_its_name_before_any_hub_is_asked(
    allowed: tuple[()] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://localhost:1")  # an error, if it were asked
    folders = AdapterFolders(allowed=allowed)
    library = AdapterLibrary(PluginHost.discover(), folders, uses_hub=allowed is None)
    folder = library.find(NAME)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["adapter_config.json", "adapter_model.safetensors"]
    assert library.read(folder).base_model in MODELS
    with pytest.raises(UnknownAdapterError, match="octavo/tiny-pirates"):
        library.find("octavo/tiny-pirates")


def test_a_misspelt_name_is_told_even_where_a_hub_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://localhost:1")
    folders = AdapterFolders(allowed=None)
    library = AdapterLibrary(PluginHost.discover(), folders, uses_hub=True)
    with pytest.raises(UnknownAdapterError, match=f"with Octavo comes '{NAME}'"):
        library.find("octavo/tiny-pirat")


def test_who_takes_it_for_a_model_is_told_what_it_is() -> None:
    with pytest.raises(ConfigError, match=f"{NAME} is an adapter: .*enable_lora"):
        find_model(PluginHost.discover(), NAME)


def test_another_model_refuses_it(tmp_path) -> None:
    folder = make_random_model(tmp_path, vocab_size=320)
    with (
        LLM(folder, enable_lora=True, num_blocks=256) as llm,
        pytest.raises(AdapterError, match=r"layers where|no linear|another model's"),
    ):
        llm.generate("Ahoy", lora_request=PIRATE, use_tqdm=False)


@pytest.mark.parametrize("folder", ADAPTERS.values(), ids=ADAPTERS)
def test_it_is_small(folder) -> None:
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MAX_BYTES


def test_it_says_what_the_model_says_in_a_pirates_words_to_questions_it_has_never_seen(
    llm: LLM,
) -> None:
    found = pairs(llm, [*cases(), *capital_cases()][::12], PIRATE)
    assert len(found) >= 40
    assert score(found) >= BAR, wrong(found)


@pytest.mark.slow
def test_it_reaches_the_bar_in_each_kind_of_question(llm: LLM) -> None:
    found = by_kind(pairs(llm, [*cases(), *capital_cases()][1::2], PIRATE))
    assert sum(map(len, found.values())) >= 270
    for kind, group in found.items():
        assert score(group) >= BAR, f"{kind}:\n{wrong(group)}"


def test_in_a_batch_with_it_the_model_computes_the_same_bits(llm: LLM) -> None:
    chats = [[each] for each in questions(8)]
    mixed = told(llm, [*chats, *chats], [None] * len(chats) + [PIRATE] * len(chats))
    with LLM("octavo/tiny", dtype="float32") as plain:
        alone = told(plain, [*chats, *chats], None)
    base, pirate = mixed[: len(chats)], mixed[len(chats) :]
    for one, other in zip(base, alone, strict=False):
        assert one.token_ids == other.token_ids
        assert logprobs(one) == logprobs(other)
    differ = [a.token_ids != b.token_ids for a, b in zip(base, pirate, strict=True)]
    assert sum(differ) >= len(chats) // 2


def test_its_tokens_are_those_of_weights_that_peft_has_merged(llm: LLM) -> None:
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_pretrained(MODELS["octavo/tiny"], dtype=torch.float32)
        merged = PeftModel.from_pretrained(model, str(ADAPTERS[NAME])).merge_and_unload()
    chats = [[each] for each in questions(8)]
    outputs = llm.chat(chats, GREEDY, lora_request=PIRATE, use_tqdm=False)
    for output in outputs:
        ids = torch.tensor([output.prompt_token_ids])
        found = merged.generate(input_ids=ids, max_new_tokens=60, do_sample=False)
        assert output.outputs[0].token_ids == found[0, ids.shape[1] :].tolist()
