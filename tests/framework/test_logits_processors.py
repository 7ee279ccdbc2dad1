"""Plugin logits processors in the engine: what they are told, and whom their errors hurt."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.testing.random_model import make_random_model
from octavo_registry import LazyRegistry, hookimpl


class Forcing:
    """Makes each request draw the token under "token"; keeps no slot that it was not attached to.

    What it raises for is a token that is not an integer.
    """

    def __init__(self, vocab_size, device) -> None:
        self.tokens: dict[int, int | None] = {}

    def attach(self, slot, extra_args) -> None:
        assert slot not in self.tokens
        token = extra_args.get("token")
        if not isinstance(token, int | None) and token != "wide":
            raise TypeError(f"token={token!r} is no id")
        self.tokens[slot] = token

    def detach(self, slot) -> None:
        del self.tokens[slot]

    def apply(self, logits_RV, slots_R):
        if "wide" in self.tokens.values():
            return torch.cat((logits_RV, logits_RV + 1e4), dim=1)
        for row, slot in enumerate(slots_R.tolist()):
            if self.tokens[slot] is not None:
                logits_RV[row, self.tokens[slot]] = 1e4
        return logits_RV


class Second(Forcing):
    """Another, so that the first has been attached when this one raises."""


class Plugin:
    OCTAVO_API = "1"

    @hookimpl
    def register_logits_processors(self, processors: LazyRegistry) -> None:
        processors.add("forcing", "processors_of_this_test:Forcing")
        processors.add("second", "processors_of_this_test:Second")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tmp_path_factory.mktemp("model")
    make_random_model(folder, vocab_size=320, num_hidden_layers=1, max_position_embeddings=64)
    sys.modules["processors_of_this_test"] = SimpleNamespace(Forcing=Forcing, Second=Second)
    options = {"logits_processors": ["forcing", "second"], "num_threads": 1, "dtype": "float32"}
    with LLM(str(folder), plugins=[Plugin()], max_num_seqs=3, **options) as llm:
        yield llm
    del sys.modules["processors_of_this_test"]


def generate(llm: LLM, *tokens: object):
    params = [
        SamplingParams(max_tokens=3, ignore_eos=True, extra_args={"token": token})
        for token in tokens
    ]
    return llm.generate([[5, 6, 7]] * len(params), params, use_tqdm=False)


def test_each_request_gets_what_it_asks_of_a_processor(llm):
    outputs = generate(llm, *range(20, 28))
    assert [o.outputs[0].token_ids for o in outputs] == [[token] * 3 for token in range(20, 28)]


def test_a_processor_that_refuses_a_request_hurts_no_other_and_no_later_one(llm):
    first, refused, last = generate(llm, 20, "bad", 21)
    assert "plugin 'Plugin' failed in logits processor 'forcing', attach" in refused.error
    assert refused.error_type == "PluginError"
    assert refused.error.endswith("TypeError: token='bad' is no id")
    assert first.outputs[0].token_ids == [20] * 3
    assert last.outputs[0].token_ids == [21] * 3
    assert [o.error for o in generate(llm, 22, 23, 24, 25)] == [None] * 4


def test_logits_of_another_shape_fail_the_request_that_asks_for_them(llm):
    first, refused, last = generate(llm, 20, "wide", 21)
    assert "apply returned torch.float32 of shape [1, 640] on cpu, not" in refused.error
    assert [o.outputs[0].token_ids for o in (first, last)] == [[20] * 3, [21] * 3]


def test_the_log_shows_where_a_step_raised_to_those_who_debug(llm, caplog):
    for level, shown in ((logging.WARNING, False), (logging.DEBUG, True)):
        caplog.clear()
        with caplog.at_level(level, "octavo"):
            generate(llm, "wide")
        assert "a step of 1 row raised: " in caplog.text
        assert ("Traceback (most recent call last)" in caplog.text) is shown
        assert ("in apply" in caplog.text) is shown
