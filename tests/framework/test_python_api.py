"""What calls of Python look like: the same arguments for all, and outputs that tell no stories."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.errors import ConfigError, ParameterError
from octavo.outputs import RequestOutput
from octavo.params import GuidedParams
from octavo.testing.random_model import make_random_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=4)
DOCUMENTS = "{% for d in documents %}{{ d.text }};{% endfor %}{{ messages[-1].content }}"
CHAT = [{"role": "user", "content": "hello"}]
SMALL: dict[str, Any] = {
    "num_blocks": 256,
    "max_num_seqs": 4,
    "num_threads": 1,
    "scheduling_policy": "priority",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_model(tmp_path_factory.mktemp("model"), vocab_size=320)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, **SMALL) as llm:
        yield llm


@pytest.mark.parametrize("method", ["generate", "chat"])
def test_llm_and_async_llm_take_the_same_arguments(method: str) -> None:
    many = inspect.signature(getattr(LLM, method)).parameters
    one = inspect.signature(getattr(AsyncLLM, method)).parameters
    of_many = {"use_tqdm", "prompts", "request_id"}
    assert set(many) - of_many == set(one) - {"request_id", "prompt"}
    singles = {"prompts", "priority", "request_id"}  # of many there is a list
    for name in (set(many) & set(one)) - singles:
        assert (many[name].default, many[name].kind) == (one[name].default, one[name].kind), name


def test_a_chats_documents_salt_and_priority_reach_the_request(llm: LLM) -> None:
    options: dict[str, Any] = {
        "chat_template": DOCUMENTS,
        "documents": [{"text": "one " * 20}],
        "use_tqdm": False,
    }
    (first,) = llm.chat(CHAT, GREEDY, cache_salt="a", priority=[3], **options)
    assert first.prompt == "one " * 20 + ";hello"
    (again,) = llm.chat(CHAT, GREEDY, cache_salt="a", **options)
    (other,) = llm.chat(CHAT, GREEDY, cache_salt="b", **options)
    assert again.metrics.num_cached_tokens > other.metrics.num_cached_tokens == 0
    with pytest.raises(ParameterError, match="priority has 1 entries for 2 prompts"):
        llm.chat([CHAT, CHAT], GREEDY, priority=[1])
    with pytest.raises(ParameterError, match="cache_salt"):
        llm.chat(CHAT, GREEDY, cache_salt="no salt")


def test_a_prompts_special_tokens_may_be_left_out(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    (output,) = llm.generate("hello", GREEDY, add_special_tokens=False, use_tqdm=False)
    assert output.prompt_token_ids == tokenizer.encode("hello", add_special_tokens=False)


def test_an_output_names_an_error_only_where_there_is_one(llm: LLM, folder: Path) -> None:
    (output,) = llm.generate("hello", GREEDY, use_tqdm=False)
    assert output.error is None
    assert output.error_type is None
    assert "Error" not in repr(output)

    async def stream() -> list[RequestOutput]:
        async with AsyncLLM(folder, engine_process=False, **SMALL) as engine:
            return [each async for each in engine.generate("hello", GREEDY)]

    assert "Error" not in repr(asyncio.run(stream()))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("guidance", "llguidance"), ("lm-format-enforcer", "lm_format_enforcer")],
)
def test_backends_of_structured_output_have_vllms_names_too(
    llm: LLM, theirs: str, ours: str
) -> None:
    guided = GuidedParams(choice=["yes", "no"], backend=theirs)
    (output,) = llm.generate("hello", SamplingParams(guided=guided), use_tqdm=False)
    assert output.outputs[0].text in ("yes", "no")
    assert output.guided is not None
    assert output.guided.backend == ours


@pytest.mark.parametrize(
    "options",
    [
        {"task": "embed"},
        {"quantization": "fp8"},
        {"pipeline_parallel_size": 2},
        {"speculative_config": {"method": "ngram"}},
    ],
)
def test_what_does_not_exist_yet_is_not_said_to_be_elsewhere(
    folder: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"\byet\b"):
        LLM(folder, **options)
