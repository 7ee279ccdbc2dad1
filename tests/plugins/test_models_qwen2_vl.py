"""Qwen2-VL against Transformers: images and videos of any size, text beside them, positions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

import media_files
from media_adapters import check_adapted
from media_equality import MediaCase, check_equal, check_every_cut, randomize, run
from octavo import LLM, SamplingParams
from octavo.config.media import MediaConfig
from octavo.errors import BadRequestError, PromptError
from octavo.execution.media_encoder import read_tensor
from octavo.inputs.media import MediaInputs
from octavo.multimodal.given import GivenMedia
from octavo_plugins.models.qwen2_vl import inputs
from octavo_registry import PluginHost
from octavo_registry.modalities import MediaItem, MediaSettings, VideoClip
from qwen_vl_equality import (
    END,
    IMAGE,
    PROMPTS,
    SIZES,
    START,
    TEXT,
    TOKENS,
    VIDEO,
    clip,
    encoded_media,
    expanded,
    expected_of,
    picture,
    reference_inputs,
    trained_positions,
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
NAME = "Qwen2VLForConditionalGeneration"
MEAN, STD = (0.3, 0.5, 0.4), (0.2, 0.3, 0.25)
"""Of a folder that does not normalise as usual."""
LIMITS = {"min_pixels": 28 * 28 * 4, "max_pixels": 28 * 28 * 8}
SETTINGS = MediaSettings(
    config={"vision_config": VISION, **TOKENS}, processors={"image": LIMITS, "video": LIMITS}
)


@pytest.fixture(scope="module")
def process() -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil(**LIMITS, image_mean=MEAN, image_std=STD)


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
    model.model.get_rope_index = trained_positions(1.0)
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


@pytest.mark.parametrize("which", [0, 2], ids=["image", "video"])
def test_tokens_are_the_same_wherever_an_item_is_cut(cases, which) -> None:
    folder, found = cases
    check_every_cut(folder, found[which])


def test_rows_that_transformers_has_encoded_stand_in_for_their_media(cases, process) -> None:
    folder, found = cases
    model = Qwen2VLForConditionalGeneration.from_pretrained(folder).eval()
    given_cases = []
    for prompt, case in zip(PROMPTS, found, strict=True):
        given, images, videos = reference_inputs(prompt, process, process)
        media = encoded_media(model, given, images, videos)
        given_cases.append(replace(case, media=media))
    for output, case in zip(run(folder, given_cases), found, strict=True):
        assert list(output.outputs[0].token_ids) == case.expected


def test_a_request_may_say_how_large_its_pictures_are(cases) -> None:
    folder, _ = cases
    prompt = {
        "prompt_token_ids": [START, IMAGE, END],
        "multi_modal_data": {"image": picture(200, 300)},
    }
    smaller = {"max_pixels": 28 * 28 * 4}
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, detokenize=False)
    settings = {
        "dtype": "float32",
        "skip_tokenizer_init": True,
        "num_threads": 1,
        "kv_cache_memory_gib": 0.01,
    }
    prompts = [prompt, {**prompt, "mm_processor_kwargs": smaller}]
    with LLM(str(folder), **settings) as llm:
        whole, small = llm.generate(prompts, params, use_tqdm=False)
        again = llm.generate(prompts[::-1], params, use_tqdm=False)
        for kwargs, problem in (
            (
                {"min_pixel": 5},
                "no entry 'min_pixel'; known: min_pixels, max_pixels, size, num_frames",
            ),
            ({"max_pixels": 1 << 40}, "max_pixels=1099511627776 must be a whole number from 1 to"),
            ({"max_pixels": 3.5}, "whole number"),
            ({"size": {"edge": 3}}, r"mm_processor_kwargs.size has no entry 'edge'"),
        ):
            with pytest.raises(PromptError, match=problem):
                llm.generate({**prompt, "mm_processor_kwargs": kwargs}, params, use_tqdm=False)
    assert len(small.prompt_token_ids) < len(whole.prompt_token_ids)
    assert [each.prompt_token_ids for each in again] == [
        each.prompt_token_ids for each in (small, whole)
    ]
    with LLM(str(folder), mm_processor_kwargs=smaller, **settings) as llm:
        (expected,) = llm.generate(prompt, params, use_tqdm=False)
    assert small.prompt_token_ids == expected.prompt_token_ids
    assert small.outputs[0].token_ids == expected.outputs[0].token_ids


@pytest.mark.parametrize(
    ("entries", "kwargs", "num_steps"),
    [
        ({}, {}, 3),  # of 3 seconds two frames each
        ({"fps": 4}, {}, 6),
        ({"fps": 4}, {"fps": 1.0}, 2),  # four frames at least
        ({"fps": 4}, {"fps": 1.0, "min_frames": 2}, 1),
        ({}, {"max_frames": 4}, 2),
        ({"num_frames": 10}, {}, 5),
        ({"num_frames": 10}, {"fps": 1.0}, 2),
        ({}, {"num_frames": 2}, 1),
        ({}, {"num_frames": 7}, 3),  # two in a step in time
    ],
)
def test_a_file_s_frames_are_as_many_as_are_asked_for(entries, kwargs, num_steps) -> None:
    settings = replace(SETTINGS, processors={"video": {**LIMITS, **entries}})
    inputs = MediaInputs(NAME, settings, PluginHost.discover(), MediaConfig())
    file = media_files.video(num_frames=30, rate=10)
    placed = inputs.place([VIDEO], inputs.split({"video": file}, None), kwargs=kwargs)
    inputs.reader.close()
    assert read_tensor(placed.inputs[0].tensors["grid"])[0] == num_steps


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"image_grid_thw": None}, "image_grid_thw=.* must be whole numbers"),
        ({"image_grid_thw": torch.tensor([1, 1 << 40, 2])}, "6 rows|has the shape"),
        ({"image_grid_thw": torch.tensor([2, 2, 2])}, "must be whole numbers"),
        ({"image_embeds": torch.zeros(3, 64)}, r"has the shape \[3, 64\]; this image has 2 rows"),
        ({"image_embeds": torch.zeros(2, 32)}, "2 rows of 64"),
        ({"image_embeds": torch.full((2, 64), torch.nan)}, "not finite"),
        ({"image_embeds": torch.zeros(2, 64, dtype=torch.int64)}, "rows are floats"),
        ({"image_embeds": [0.0]}, "give a tensor"),
        ({"more": torch.ones(1)}, "no tensor 'more'"),
    ],
)
def test_rows_that_do_not_fit_are_refused(given_inputs, change, problem) -> None:
    tensors = {
        "image_embeds": torch.zeros(2, 64),
        "image_grid_thw": torch.tensor([1, 2, 4]),
        **change,
    }
    given = {name: each for name, each in tensors.items() if each is not None}
    with pytest.raises(BadRequestError, match=f"image: .*({problem})"):
        given_inputs.place([IMAGE], given_inputs.split({"image": given}, None))


def test_a_name_of_an_item_is_not_one_of_rows(given_inputs) -> None:
    image = {"image": picture(56, 56)}
    given_inputs.place([IMAGE], given_inputs.split(image, {"image": "mine"}))
    given_inputs.place([IMAGE], given_inputs.split({"image": None}, {"image": "mine"}))
    rows = GivenMedia(modality="image", data=None, uuid="mine", place="rows", is_encoded=True)
    with pytest.raises(BadRequestError, match="no item of this uuid is kept"):
        given_inputs.place([IMAGE], [rows])


@pytest.fixture(scope="module")
def given_inputs() -> Iterator[MediaInputs]:
    settings = replace(SETTINGS, config={**SETTINGS.config, "hidden_size": 64})
    made = MediaInputs(NAME, settings, PluginHost.discover(), MediaConfig())
    yield made
    made.reader.close()


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
    mean, std = (np.array(each).reshape(3, 1, 1, 1) for each in (MEAN, STD))
    levels = (expected.reshape(patches.shape).numpy() * std + mean) * 255
    assert np.abs(levels - patches.numpy()).max() <= 1


@pytest.mark.slow
def test_adapters_of_the_language_model_are_those_of_peft(cases, tmp_path) -> None:
    check_adapted(*cases, tmp_path)
