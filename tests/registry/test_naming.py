"""Slips in names."""

from __future__ import annotations

import pytest

from octavo_registry.naming import misspelt

KNOWN = ("temperature", "max_tokens", "seed", "tools", "model", "n", "stream", "top_k")


@pytest.mark.parametrize(
    ("name", "meant"),
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
def test_a_slip_is_near_the_name_that_is_meant(name, meant) -> None:
    assert misspelt(name, KNOWN) == meant


@pytest.mark.parametrize(
    "name",
    ["nonsense", "m", "", "id", "plugins", "temp", "max_new_tokens", "a" * 100_000],
)
def test_other_names_are_no_slips(name) -> None:
    assert misspelt(name, KNOWN) is None


def test_of_several_names_the_nearest_is_meant() -> None:
    assert misspelt("top_pp", ("top_p", "top_k")) == "top_p"
