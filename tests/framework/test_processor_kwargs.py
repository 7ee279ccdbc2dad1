"""What users and requests may set of processors: one check, and nothing that means nothing."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import PromptError
from octavo.inputs.processor_kwargs import read_kwargs, with_kwargs
from octavo_registry.modalities import FRAME_KWARGS, MediaSettings

KNOWN: dict[str, Any] = {
    "min_pixels": (1, 1000),
    "max_pixels": (1, 5000),
    "size": {"shortest_edge": "min_pixels", "longest_edge": "max_pixels", "side": (1, 9)},
    "min_frames": (1, 512),
    **FRAME_KWARGS,
}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"nope": 1}, "has no entry 'nope'; known: min_pixels, max_pixels, size, min_frames"),
        ({"size": {"edge": 1}}, "size has no entry 'edge'; known: shortest_edge, longest_edge"),
        ({"size": 3}, "size must be a dict, not int"),
        ([], "mm_processor_kwargs must be a dict, not list"),
        ({"max_pixels": "5"}, "max_pixels='5' must be a whole number from 1 to 5000"),
        ({"max_pixels": True}, "must be a whole number"),
        ({"max_pixels": None}, "must be a whole number"),
        ({"size": {"longest_edge": 0}}, "size.longest_edge=0 must be a whole number from 1"),
        ({"fps": float("nan")}, "fps=nan must be a number from 0.01 to 60.0"),
        ({"fps": 2, "num_frames": 8}, "has num_frames and fps; give one of them"),
        ({"min_frames": 2, "num_frames": 8}, "has num_frames and min_frames"),
        ({"max_pixels": 5, "size": {"longest_edge": 5}}, "longest_edge is set twice"),
        ({"min_pixels": 6, "max_pixels": 5}, "min_pixels=6 is above max_pixels=5"),
        ({"size": {"shortest_edge": 6, "longest_edge": 5}}, "min_pixels=6 is above max_pixels=5"),
        ({"max_pixels": 5}, "min_pixels=9 is above max_pixels=5"),  # set at the start
    ],
)
def test_what_is_unknown_of_the_wrong_kind_or_without_sense_is_refused(given, problem) -> None:
    with pytest.raises(PromptError, match=problem) as caught:
        read_kwargs(given, KNOWN, {"min_pixels": 9})
    assert caught.value.param == "mm_processor_kwargs"


@pytest.mark.parametrize(
    ("before", "given", "expected"),
    [
        ({}, {}, {"size": {"side": 4, "other": 5}, "num_frames": 32}),
        ({}, {"size": {"side": 1}}, {"size": {"side": 1, "other": 5}, "num_frames": 32}),
        ({"max_pixels": 7}, {"size": {"longest_edge": 6}}, {"max_pixels": 6}),
        ({}, {"fps": 2}, {"fps": 2, "num_frames": None}),
        ({"fps": 2}, {"num_frames": 8}, {"fps": None, "num_frames": 8}),
        ({"num_frames": 8}, {"fps": 2}, {"fps": 2, "num_frames": None}),
    ],
)
def test_a_request_goes_before_the_start_and_that_before_the_folder(
    before, given, expected
) -> None:
    entries = {"size": {"side": 4, "other": 5}, "num_frames": 32}
    asked = read_kwargs(given, KNOWN, read_kwargs(before, KNOWN))
    settings = with_kwargs(MediaSettings(config={}, processors={"video": entries}), asked)
    assert {name: settings.entry("video", name, None) for name in expected} == expected
