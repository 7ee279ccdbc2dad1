"""SamplingParams are checked when they are made."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from octavo.errors import ParameterError
from octavo.params import GuidedParams, LoRARequest, SamplingParams


def test_an_unknown_name_is_a_type_error_with_near_matches() -> None:
    with pytest.raises(TypeError, match=r"no field 'temprature'; close: \['temperature'\]"):
        SamplingParams(temprature=1.0)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": math.nan},
        {"temperature": -0.1},
        {"temperature": True},
        {"temperature": "1"},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -2},
        {"top_k": 1.0},
        {"min_p": 2},
        {"n": 0},
        {"n": 129},
        {"seed": 2**63},
        {"max_tokens": 0},
        {"min_tokens": 17},
        {"logprobs": 129},
        {"presence_penalty": math.inf},
        {"repetition_penalty": 0},
        {"stop": ""},
        {"stop": [""]},
        {"stop": 5},
        {"stop": ["x"] * 17},
        {"stop": "x", "detokenize": False},
        {"stop_token_ids": 5},
        {"stop_token_ids": [-1]},
        {"bad_words": "word"},
        {"bad_words": [""]},
        {"logit_bias": {"a": 1.0}},
        {"logit_bias": {1: 101}},
        {"allowed_token_ids": []},
        {"ignore_eos": 1},
        {"output_kind": "all"},
        {"guided": {"regex": "a"}},
        {"truncate_prompt_tokens": 0},
        {"temperature": 10**400},
        {"n": 10**5000},
        {"min_tokens": 10**5000},
        {"logit_bias": [1]},
        {"logit_bias": {1: 10**400}},
        {"output_kind": np.array([1, 2])},
        {"extra_args": "x"},
        {"bad_words": ["half \ud83d pair"]},
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_name(values: dict[str, Any]) -> None:
    (name, *_) = values
    with pytest.raises(ParameterError, match=name.replace("_", "[ _]")) as refusal:
        SamplingParams(**values)
    assert "\n" not in str(refusal.value)
    assert refusal.value.param == name


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_whoever_asks_for_all_logprobs_is_told_how_many_there_are_at_most(name: str) -> None:
    with pytest.raises(ParameterError, match=f"^{name}=-1 asks for the whole .*; at most 128$"):
        SamplingParams(**{name: -1})


def test_none_stands_for_no_stops_as_in_vllm() -> None:
    params = SamplingParams(stop=None, stop_token_ids=None, bad_words=None)
    assert params.stop_strings == ()


def test_copies_and_replacements_are_checked_and_equal() -> None:
    params = SamplingParams(temperature=0.5, stop=["a"])
    assert copy.deepcopy(params) == params
    assert dataclasses.replace(params, n=2).n == 2
    with pytest.raises(ParameterError):
        dataclasses.replace(params, n=0)


def test_guided_params_take_exactly_one_constraint() -> None:
    assert GuidedParams(regex="a").constraint == "regex"
    for given in ({}, {"regex": "a", "choice": ("b",)}):
        with pytest.raises(ParameterError, match="exactly one"):
            GuidedParams(**given)


@pytest.mark.parametrize("value", ["<tool_call>", [""], [5], ["<t>"] * 65, None])
def test_special_tokens_to_keep_are_a_list_of_texts(value) -> None:
    assert SamplingParams(keep_special_tokens=["<t>"]).keep_special_tokens == ["<t>"]
    with pytest.raises(ParameterError) as raised:
        SamplingParams(keep_special_tokens=value)
    assert raised.value.param == "keep_special_tokens"


def test_an_adapter_has_vllms_names() -> None:
    by_place = LoRARequest("sql", 1, "/adapters/sql")
    assert by_place == LoRARequest(lora_name="sql", lora_int_id=1, lora_path="/adapters/sql")
    assert (by_place.name, by_place.path, by_place.base_model_name) == (
        "sql",
        "/adapters/sql",
        None,
    )
    assert LoRARequest("sql").path is None
    with pytest.raises(TypeError, match="'lora_local_path'"):
        LoRARequest("sql", 1, lora_local_path="/adapters/sql")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "value"),
    [("lora_name", ""), ("lora_name", 1), ("lora_int_id", "1"), ("lora_path", ""), ("lora_path", 1),
     ("base_model_name", 1)],
)  # fmt: skip
def test_what_an_adapter_cannot_be_is_named(name: str, value: object) -> None:
    with pytest.raises(ParameterError, match=f"{name}={value!r} must be"):
        LoRARequest(**{"lora_name": "sql", name: value})
