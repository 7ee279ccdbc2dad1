"""Qwen2.5-VL against Transformers: windows in the encoder, videos placed by their seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from media_adapters import check_adapted
from media_equality import MediaCase, check_equal, randomize, run
from octavo.errors import PromptError
from octavo_plugins.models.qwen2_5_vl.inputs import seconds_per_frame
from octavo_plugins.models.qwen2_5_vl.vision import WindowedEncoder
from octavo_registry.modalities import VideoClip
from qwen_vl_equality import (
    PROMPTS,
    START,
    TEXT,
    TOKENS,
    Prompt,
    encoded_media,
    expanded,
    expected_of,
    picture,
    reference_inputs,
    trained_positions,
)

VISION = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "out_hidden_size": 64,
    "num_heads": 2,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "tokens_per_second": 3,
    "window_size": 56,
    "fullatt_block_indexes": [1],
}
LIMITS = {"min_pixels": 28 * 28 * 4, "max_pixels": 28 * 28 * 20}
WIDE = Prompt([3, START, TOKENS["image_token_id"], 7], [picture(100, 150)])
"""More than a window on both sides, and no whole number of them."""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[MediaCase]]:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("qwen2_5_vl")
    process = Qwen2VLImageProcessorPil(**LIMITS)
    config = Qwen2_5_VLConfig(
        vision_config=VISION, text_config={**TEXT, "tie_word_embeddings": False}, **TOKENS
    )
    model = Qwen2_5_VLForConditionalGeneration(config).eval()
    randomize(model)
    model.save_pretrained(folder)
    model.model.get_rope_index = trained_positions(VISION["tokens_per_second"])
    process.to_json_file(folder / "preprocessor_config.json")
    found = []
    for prompt in (*PROMPTS, WIDE):
        given: dict[str, Any]
        given, images, videos = reference_inputs(prompt, process, process)
        if videos:
            seconds = [2 * seconds_per_frame(video) for video in prompt.videos]
            given["second_per_grid_ts"] = torch.tensor(seconds)
        ids = expanded(prompt.token_ids, images, videos)
        found.append(prompt.case(expected_of(model, ids, given)))
    return folder, found


def test_tokens_are_those_of_transformers_in_every_way_of_running(cases, device) -> None:
    folder, found = cases
    check_equal(folder, found, most_rows=60, device=device)


def test_rows_that_transformers_has_encoded_stand_in_for_their_media(cases) -> None:
    folder, found = cases
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder).eval()
    process = Qwen2VLImageProcessorPil(**LIMITS)
    given_cases = []
    for prompt, case in zip((*PROMPTS, WIDE), found, strict=True):
        given, images, videos = reference_inputs(prompt, process, process)
        media = encoded_media(model, given, images, videos)
        for item, video in zip(media.get("video", []), prompt.videos, strict=True):
            item["second_per_grid_ts"] = torch.tensor([2 * seconds_per_frame(video)])
        given_cases.append(replace(case, media=media))
    for output, case in zip(run(folder, given_cases), found, strict=True):
        assert list(output.outputs[0].token_ids) == case.expected


def test_a_slower_video_is_another_prompt(cases) -> None:
    folder, found = cases
    video = found[2].media["video"][0]
    slower = VideoClip(frames=video.frames, timestamps=tuple(4 * each for each in video.timestamps))
    (output,) = run(folder, [replace(found[2], media={"video": [slower]})], passes=1)
    assert list(output.outputs[0].token_ids) != found[2].expected


def test_frames_without_timestamps_are_24_a_second() -> None:
    frames = np.zeros((4, 2, 2, 3), np.uint8)
    assert seconds_per_frame(VideoClip(frames=frames)) == 1 / 24
    assert seconds_per_frame(VideoClip(frames=frames, timestamps=(0.0, 0.5, 1.0, 1.5))) == 0.5


@pytest.mark.parametrize("seconds", [1700.0, 30_000.0, float("nan"), -1.0, 1e30])
def test_timestamps_beyond_the_context_fail_their_request_alone(cases, seconds) -> None:
    folder, found = cases
    video = found[2].media["video"][0]
    times = tuple(seconds * i for i in range(len(video.frames)))
    far = VideoClip(frames=video.frames, timestamps=times)
    with pytest.raises(PromptError, match=r"the context has 0 to|the video's timestamps"):
        run(folder, [replace(found[2], media={"video": [far]})], passes=1)


def test_windows_decide_the_tokens(cases, monkeypatch) -> None:
    """Squares in another order within a picture whose windows are the same number are noticed."""
    folder, found = cases
    by_windows = WindowedEncoder._by_windows

    def unsorted(self, grids):
        order_M, windows = by_windows(self, grids)
        return torch.arange(len(order_M)), windows

    monkeypatch.setattr(WindowedEncoder, "_by_windows", unsorted)
    (output,) = run(folder, found[-1:], passes=1)
    assert list(output.outputs[0].token_ids) != found[-1].expected


@pytest.mark.slow
def test_adapters_of_the_language_model_are_those_of_peft(cases, tmp_path) -> None:
    check_adapted(*cases, tmp_path)
