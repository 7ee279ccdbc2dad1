"""Qwen2-VL against Transformers: images and videos of any size, text beside them, positions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from media_adapters import check_adapted
from media_equality import MediaCase, check_equal, randomize, run
from octavo_plugins.models.qwen2_vl import inputs
from octavo_registry.modalities import MediaItem, MediaSettings, VideoClip
from qwen_vl_equality import (
    PROMPTS,
    SIZES,
    TEXT,
    TOKENS,
    clip,
    expanded,
    expected_of,
    picture,
    reference_inputs,
    video_patches,
)

VISION = {
    "depth": 2,
    "embed_dim": 32,
    "hidden_size": 64,
    "num_heads": 2,
    "mlp_ratio": 2,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
LIMITS = {"min_pixels": 28 * 28 * 4, "max_pixels": 28 * 28 * 8}
SETTINGS = MediaSettings(
    config={"vision_config": VISION, **TOKENS}, processors={"image": LIMITS, "video": LIMITS}
)


@pytest.fixture(scope="module")
def process() -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil(**LIMITS)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, process) -> tuple[Path, list[MediaCase]]:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("qwen2_vl")
    config = Qwen2VLConfig(
        vision_config=VISION, text_config={**TEXT, "tie_word_embeddings": False}, **TOKENS
    )
    model = Qwen2VLForConditionalGeneration(config).eval()
    randomize(model)
    model.save_pretrained(folder)
    process.to_json_file(folder / "preprocessor_config.json")
    found = []
    for prompt in PROMPTS:
        given, images, videos = reference_inputs(prompt, process, process)
        ids = expanded(prompt.token_ids, images, videos)
        found.append(prompt.case(expected_of(model, ids, given)))
    return folder, found


def test_tokens_are_those_of_transformers_in_every_way_of_running(cases, device) -> None:
    folder, found = cases
    check_equal(folder, found, most_rows=24, device=device)


def test_swapped_images_and_reversed_videos_are_other_prompts(cases) -> None:
    folder, found = cases
    swapped = replace(found[1], media={"image": found[1].media["image"][::-1]})
    video = found[2].media["video"][0]
    reverse = VideoClip(frames=video.frames[::-1].copy(), timestamps=video.timestamps)
    reversed_ = replace(found[2], media={"video": [reverse]})
    for output, case in zip(run(folder, [swapped, reversed_], passes=1), found[1:3], strict=True):
        assert list(output.outputs[0].token_ids) != case.expected


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_each_axis_of_positions_decides_the_tokens(cases, monkeypatch, axis) -> None:
    folder, found = cases
    positions = inputs.positions

    def with_wrong_axis(*args):
        positions_AP = positions(*args)
        positions_AP[axis] = positions_AP[axis].max() - positions_AP[axis]
        return positions_AP

    monkeypatch.setattr(inputs, "positions", with_wrong_axis)
    outputs = run(folder, found[:4], passes=1)
    assert [list(each.outputs[0].token_ids) for each in outputs] != [
        case.expected for case in found[:4]
    ]


@pytest.mark.parametrize("size", [*SIZES, (13, 300), (700, 31), (201, 199)])
def test_patches_are_those_of_the_models_own_processor(process, size) -> None:
    image = picture(*size)
    item = MediaItem(modality="image", value=image, content_hash="")
    made = inputs.patches("image", item, SETTINGS)
    expected = process(image, return_tensors="pt")
    assert made["grid"].tolist() == expected["image_grid_thw"][0].tolist()
    _close_in_grey_levels(made["patches"].expand(-1, -1, 2, -1, -1), expected["pixel_values"])


def test_frames_of_a_video_stand_two_in_a_patch(process) -> None:
    video = clip(5, 60, 90)
    item = MediaItem(modality="video", value=video, content_hash="")
    made = inputs.patches("video", item, SETTINGS)
    expected, grid = video_patches(process, video)
    assert made["grid"].tolist() == grid
    _close_in_grey_levels(made["patches"], expected)


def test_frames_are_resized_as_torch_resizes_them() -> None:
    """The model's own processor of videos does it with torchvision, which asks torch."""
    video = clip(2, 100, 77)
    item = MediaItem(modality="video", value=video, content_hash="")
    made = inputs.patches("video", item, SETTINGS)
    _, rows, columns = made["grid"].tolist()
    frames = torch.from_numpy(video.frames).permute(0, 3, 1, 2)
    resized = torch.nn.functional.interpolate(
        frames, (rows * 14, columns * 14), mode="bicubic", antialias=True
    )
    resized_clip = VideoClip(frames=resized.permute(0, 2, 3, 1).contiguous().numpy())
    same_size = MediaItem(modality="video", value=resized_clip, content_hash="")
    expected = inputs.patches_of(same_size, tuple(made["grid"].tolist()), SETTINGS)
    difference = made["patches"].int() - expected["patches"].int()
    assert difference.abs().max() <= 1


def test_the_first_checkpoints_name_their_angles_in_another_way(cases, tmp_path) -> None:
    folder, found = cases
    config = json.loads((folder / "config.json").read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    sections = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    text |= {"rope_scaling": sections, "rope_theta": rope["rope_theta"]}
    del text["model_type"]
    (tmp_path / "config.json").write_text(json.dumps({**text, **config}))
    for file in ("model.safetensors", "preprocessor_config.json"):
        (tmp_path / file).symlink_to(folder / file)
    (output,) = run(tmp_path, found[1:2], passes=1)
    assert list(output.outputs[0].token_ids) == found[1].expected


def test_a_picture_that_is_nearly_a_line_is_refused() -> None:
    item = MediaItem(modality="image", value=Image.new("RGB", (402, 2)), content_hash="")
    with pytest.raises(Exception, match="402 x 2"):
        inputs.patches("image", item, SETTINGS)


def _close_in_grey_levels(patches: torch.Tensor, expected: torch.Tensor) -> None:
    mean, std = (
        np.array(each).reshape(3, 1, 1, 1)
        for each in ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
    )
    levels = (expected.reshape(patches.shape).numpy() * std + mean) * 255
    assert np.abs(levels - patches.numpy()).max() <= 1


@pytest.mark.slow
def test_adapters_of_the_language_model_are_those_of_peft(cases, tmp_path) -> None:
    check_adapted(*cases, tmp_path)
