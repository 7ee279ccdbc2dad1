from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from octavo.messages import TokenSampling
from octavo.steps.features import features_of
from octavo_kernels.row_features import RowFeature

F = RowFeature


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, F.RANDOM),
        ({"temperature": 0.0}, F(0)),
        ({"temperature": 9e-6, "top_k": 5, "top_p": 0.5, "min_p": 0.1}, F(0)),
        ({"top_k": 5}, F.RANDOM | F.TOP_K),
        ({"top_k": -1}, F.RANDOM),
        ({"top_p": 0.5, "min_p": 0.1}, F.RANDOM | F.TOP_P | F.MIN_P),
        ({"temperature": 0.0, "presence_penalty": -0.1}, F.PENALTY),
        ({"temperature": 0.0, "frequency_penalty": 0.1}, F.PENALTY),
        ({"temperature": 0.0, "repetition_penalty": 0.9}, F.PENALTY),
        ({"temperature": 0.0, "logit_bias": {1: 0.0}}, F.BIAS),
        ({"temperature": 0.0, "allowed_token_ids": (1,)}, F.BIAS),
        ({"temperature": 0.0, "bad_word_ids": ((1,),)}, F.BAD_WORDS),
        ({"temperature": 0.0, "min_tokens": 1, "eos_token_ids": (2,)}, F.MIN_TOKENS),
        ({"temperature": 0.0, "min_tokens": 1, "stop_token_ids": (2,)}, F.MIN_TOKENS),
        ({"temperature": 0.0, "min_tokens": 1}, F(0)),
    ],
)
def test_a_row_has_just_the_features_that_its_parameters_need(
    given: dict[str, Any], expected: RowFeature
) -> None:
    assert features_of(TokenSampling(seed=0, max_tokens=4, **given)) == expected


def test_the_scheduler_can_name_features_without_loading_torch() -> None:
    code = "import sys, octavo.steps.features; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
