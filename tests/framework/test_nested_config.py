"""Entries that a language model inside another leaves to its kind."""

from __future__ import annotations

import pytest
from transformers import AutoConfig

from octavo.model_folder.nested import TEXT_DEFAULTS, with_text_defaults


@pytest.mark.parametrize("kind", TEXT_DEFAULTS)
def test_what_is_left_out_is_what_transformers_takes(kind: str) -> None:
    expected = AutoConfig.for_model(kind).to_dict()
    assert TEXT_DEFAULTS[kind] == {name: expected[name] for name in TEXT_DEFAULTS[kind]}


def test_what_is_given_stays_and_other_kinds_stay_as_they_are() -> None:
    text = {"model_type": "mistral", "vocab_size": 32064}
    found = with_text_defaults({"model_type": "llava_next", "text_config": text})
    assert found["text_config"]["vocab_size"] == 32064
    assert found["text_config"]["num_key_value_heads"] == 8
    assert found["model_type"] == "llava_next"
    for other in ({"text_config": {"model_type": "new"}}, {"text_config": {}}, {"vocab_size": 3}):
        assert with_text_defaults(other) == other
