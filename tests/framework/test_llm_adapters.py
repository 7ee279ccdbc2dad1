"""``LLM`` and ``AsyncLLM`` with adapters from files, against PEFT itself."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from transformers import AutoModelForCausalLM

from octavo import LLM, AsyncLLM, BeamSearchParams, GuidedParams, LoRARequest, SamplingParams
from octavo.errors import AdapterError, ConfigError, ParameterError, UnknownAdapterError
from octavo.testing.random_model import make_random_model
from peft_adapters import edit_tensors, save_adapter

T = TypeVar("T")
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPT = {"prompt_token_ids": [*range(9, 30)]}
OPTIONS: dict[str, Any] = {
    "num_blocks": 256,
    "max_num_seqs": 16,
    "num_threads": 1,
    "enable_lora": True,
    "max_loras": 2,
    "max_cpu_loras": 2,
}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
OF_BASE = "base_model.model.model.embed_tokens.base_layer.weight"
"""Saved along by PEFT."""
SETTINGS: dict[str, dict[str, Any]] = {
    "all": {"r": 8, "lora_alpha": 32, "target_modules": [*TARGETS, "embed_tokens", "lm_head"]},
    "rslora": {"r": 16, "lora_alpha": 16, "target_modules": ["q_proj", "down_proj"],
               "use_rslora": True},
    "small": {"r": 2, "lora_alpha": 16, "target_modules": ["v_proj", "up_proj"]},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_model(tmp_path_factory.mktemp("model"), vocab_size=320)


@pytest.fixture(scope="module")
def adapters(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoRARequest]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    requests = {}
    for number, (name, settings) in enumerate(SETTINGS.items(), 1):
        path = tmp_path_factory.mktemp(name)
        save_adapter(model, path, task_type="CAUSAL_LM", **settings)
        requests[name] = LoRARequest(name, number, str(path))
    return requests


@pytest.fixture(scope="module")
def expected(folder: Path, adapters: dict[str, LoRARequest]) -> dict[str, list[int]]:
    """PEFT's greedy tokens by adapter; "" is the base model."""
    from peft import PeftModel

    ids = torch.tensor([PROMPT["prompt_token_ids"]])
    tokens = {}
    for name in ("", *adapters):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        if name:
            model = PeftModel.from_pretrained(model, str(adapters[name].path))
        found = model.generate(
            input_ids=ids, max_new_tokens=12, min_new_tokens=12, do_sample=False, eos_token_id=None
        )
        tokens[name] = found[0, ids.shape[1] :].tolist()
    assert len({tuple(each) for each in tokens.values()}) == 4
    return tokens


@pytest.fixture(scope="module", params=[False, True], ids=["in this process", "in its own"])
def llm(request: pytest.FixtureRequest, folder: Path) -> Iterator[LLM]:
    with LLM(folder, engine_process=request.param, **OPTIONS) as llm:
        yield llm


def tokens_of(llm: LLM, requests: Any, count: int = 1) -> list[list[int]]:
    outputs = llm.generate([PROMPT] * count, GREEDY, lora_request=requests, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def test_each_prompt_of_a_batch_has_its_own_and_host_memory_holds_two_at_a_time(
    llm: LLM, adapters: dict[str, LoRARequest], expected: dict[str, list[int]]
) -> None:
    for names in (["all", "", "rslora", "all"], ["small", "all"], ["", "rslora"], ["small"]):
        requests = [adapters.get(name) for name in names]
        assert tokens_of(llm, requests, len(names)) == [expected[name] for name in names]
    assert llm._front.client.call("stats")["num_adapters"] == 2


def test_a_name_is_enough_once_its_path_is_known_until_it_is_unloaded(
    llm: LLM, adapters: dict[str, LoRARequest], expected: dict[str, list[int]]
) -> None:
    tokens_of(llm, adapters["all"])
    for other in ("small", "rslora"):  # so that it is read again
        tokens_of(llm, adapters[other])
    assert tokens_of(llm, LoRARequest("all")) == [expected["all"]]
    llm.unload_adapter("all")
    with pytest.raises(UnknownAdapterError, match="'all'"):
        llm.unload_adapter("all")
    with pytest.raises(UnknownAdapterError, match="all"):
        tokens_of(llm, LoRARequest("all"))


def test_more_adapters_than_host_memory_may_hold_in_one_call_are_refused_and_none_is_left(
    llm: LLM, adapters: dict[str, LoRARequest], expected: dict[str, list[int]]
) -> None:
    with pytest.raises(AdapterError, match=r"names 3 adapters, .* max_cpu_loras=2"):
        tokens_of(llm, list(adapters.values()), 3)
    assert tokens_of(llm, adapters["small"]) == [expected["small"]]


def test_what_is_wrong_with_an_adapter_is_its_requests_error_alone(
    llm: LLM, adapters: dict[str, LoRARequest], expected: dict[str, list[int]], tmp_path: Path
) -> None:
    with pytest.raises(AdapterError, match="no adapter of a known format"):
        tokens_of(llm, LoRARequest("empty", lora_path=str(tmp_path)))
    other = tmp_path / "other"
    shutil.copytree(str(adapters["all"].path), other)
    edit_tensors(other, lambda each: each | {OF_BASE: each[OF_BASE].roll(1)})
    with pytest.raises(AdapterError, match=r"resized or trained there: model\.embed_tokens"):
        tokens_of(llm, LoRARequest("other", lora_path=str(other)))
    tokens_of(llm, adapters["small"])
    with pytest.raises(AdapterError, match="'small' is loaded from"):
        tokens_of(llm, LoRARequest("small", lora_path=str(tmp_path)))
    with pytest.raises(ParameterError, match="lora_request has 2 entries for 1 prompts"):
        tokens_of(llm, [adapters["small"], None])
    with pytest.raises(ParameterError, match="must be a LoRARequest"):
        tokens_of(llm, "small")
    assert tokens_of(llm, adapters["small"]) == [expected["small"]]


def test_chats_and_beams_have_them_too(llm: LLM, adapters: dict[str, LoRARequest]) -> None:
    def chat(request: LoRARequest | None) -> list[int]:
        template = "{{ messages[0]['content'] }}"
        messages = [{"role": "user", "content": "The capital of France"}]
        (output,) = llm.chat(
            messages, GREEDY, chat_template=template, lora_request=request, use_tqdm=False
        )
        return output.outputs[0].token_ids

    def best(request: LoRARequest | None) -> list[int]:
        params = BeamSearchParams(beam_width=1, max_tokens=12, ignore_eos=True)
        return llm.beam_search(PROMPT, params, lora_request=request)[0].sequences[0].token_ids

    for run in (chat, best):
        assert run(adapters["all"]) == run(adapters["all"]) != run(None)


def test_a_guided_request_has_one_too_and_lets_it_go(
    llm: LLM, adapters: dict[str, LoRARequest]
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=8, guided=GuidedParams(regex="[0-9]{5}"))
    texts = []
    for request in (adapters["all"], None):
        (output,) = llm.generate("A number", params, lora_request=request, use_tqdm=False)
        texts.append(output.outputs[0].text)
    assert [len(text) for text in texts] == [5, 5]
    assert texts[0] != texts[1]
    before = llm._front.client.call("stats")["num_adapters"]
    llm.unload_adapter("all")
    assert llm._front.client.call("stats")["num_adapters"] == before - 1


def run_in_a_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def test_async_requests_load_at_the_same_time_and_each_has_its_own(
    folder: Path, adapters: dict[str, LoRARequest], expected: dict[str, list[int]]
) -> None:
    async def run() -> list[list[int]]:
        async with AsyncLLM(str(folder), **{**OPTIONS, "max_cpu_loras": 3}) as llm:

            async def one(name: str) -> list[int]:
                params = SamplingParams(
                    temperature=0.0, max_tokens=12, ignore_eos=True, output_kind="final"
                )
                async for output in llm.generate(PROMPT, params, lora_request=adapters.get(name)):
                    last = output
                return last.outputs[0].token_ids

            found = await asyncio.gather(*(one(name) for name in [*expected, *expected]))
            llm.adapters.unload("all")
            assert (await llm.stats())["num_adapters"] == 2
            llm.restart()
            assert await one("small") == expected["small"]
            return found

    found = run_in_a_loop(run())
    assert found == [*expected.values()] * 2


def test_loads_take_no_threads_that_others_need_and_one_that_nobody_waits_for_is_let_go(
    folder: Path, adapters: dict[str, LoRARequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()

    async def run() -> None:
        async with AsyncLLM(str(folder), **OPTIONS) as llm:
            read = llm.adapters._read

            def read_late(request: LoRARequest, path: str) -> Any:
                begun.set()
                assert may_go_on.wait(60)
                return read(request, path)

            async def one(prompt: Any, adapter: LoRARequest | None) -> None:
                async for _ in llm.generate(prompt, GREEDY, lora_request=adapter):
                    pass

            monkeypatch.setattr(llm.adapters, "_read", read_late)
            path = adapters["small"].path
            loads = [
                asyncio.create_task(one(PROMPT, LoRARequest(str(number), lora_path=path)))
                for number in range(40)  # more than asyncio has threads
            ]
            assert await asyncio.to_thread(begun.wait, 60)
            try:
                await asyncio.wait_for(llm.tokenize("A text"), 30)
                for load in loads:
                    load.cancel()
                await asyncio.wait(loads)
            finally:
                may_go_on.set()
            await one(PROMPT, LoRARequest("last", lora_path=path))
            loaded = [llm.adapters.get(name) for name in llm.adapters.known]
            assert [(each.name, each.num_leases) for each in loaded if each is not None] == [
                ("0", 0),
                ("last", 0),
            ]

    run_in_a_loop(run())


def test_an_engine_without_adapters_says_what_to_set(
    folder: Path, adapters: dict[str, LoRARequest]
) -> None:
    options = {**OPTIONS, "enable_lora": False}
    with LLM(folder, **options) as llm, pytest.raises(ConfigError, match="set enable_lora=True"):
        tokens_of(llm, adapters["small"])


def test_a_rank_above_the_bound_is_refused(folder: Path, adapters: dict[str, LoRARequest]) -> None:
    with (
        LLM(folder, max_lora_rank=8, **OPTIONS) as llm,
        pytest.raises(AdapterError, match=r"rank of 16 is above 8, .*max_lora_rank"),
    ):
        tokens_of(llm, adapters["rslora"])
