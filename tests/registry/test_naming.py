"""Slips in names."""

from __future__ import annotations

import pytest

from octavo_registry.naming import close_or_known, meant

KNOWN = ("temperature", "max_tokens", "seed", "tools", "model", "n", "stream", "top_k")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("temprature", "temperature"),
        ("tempreture", "temperature"),
        ("Temperature", "temperature"),
        ("maxTokens", "max_tokens"),
        ("max-tokens", "max_tokens"),
        ("max_token", "max_tokens"),
        ("sede", "seed"),
        ("tool", "tools"),
        ("modle", "model"),
        ("N", "n"),
    ],
)
def test_a_slip_is_near_the_name_that_is_meant(name, wanted) -> None:
    assert meant(name, KNOWN, surely=True)[0] == wanted


@pytest.mark.parametrize(
    "name",
    ["nonsense", "m", "", "id", "plugins", "temp", "max_new_tokens", "a" * 100_000],
)
def test_other_names_are_no_slips(name) -> None:
    assert meant(name, KNOWN, surely=True) == []


def test_of_several_names_the_nearest_is_meant() -> None:
    assert meant("top_pp", ("top_p", "top_k"), surely=True)[0] == "top_p"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("max_model_length", "max_model_len"),
        ("capability", "capabilities"),
        ("minItem", "minItems"),
        ("max_batched_tokens", "max_num_batched_tokens"),
        ("gpu-mem-utilization", "gpu_memory_utilization"),
    ],
)
def test_other_forms_of_the_words_are_suggested(name, wanted) -> None:
    known = ("max_model_len", "capabilities", "minItems", "max_num_batched_tokens", "max_num_seqs",
             "gpu_memory_utilization", "enable_lora")  # fmt: skip
    assert meant(name, known) == [wanted]


@pytest.mark.parametrize("name", ["enable_eplb", "max_loras", "a" * 100_000, "a_" * 50_000, ""])
def test_names_that_share_a_word_may_mean_something_else(name) -> None:
    assert meant(name, ("enable_lora", "max_model_len", "max_num_seqs")) == []


def test_an_error_says_what_is_close_else_all_that_there_is() -> None:
    assert close_or_known("tol", ["tools", "tool"]) == "close: ['tool']"
    assert close_or_known("tol", ["b", "a"]) == "known: ['a', 'b']"
    assert close_or_known("tol", []) == "there are none"
