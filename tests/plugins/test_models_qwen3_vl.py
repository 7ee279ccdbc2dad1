"""Qwen3-VL against Transformers: rows for several layers, seconds as text; with experts too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    PreTrainedTokenizerFast,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize

from media_adapters import check_adapted
from media_equality import MediaCase, check_equal, check_every_cut, randomize, run
from octavo_plugins.models.qwen3_vl import inputs
from octavo_plugins.models.qwen3_vl.model import Qwen3VL
from octavo_plugins.models.qwen3_vl.vision import StretchedPositions
from octavo_registry.modalities import MediaItem, MediaSettings, VideoClip
from qwen_vl_equality import (
    END,
    PROMPTS,
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
    video_patches,
)

VISION = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "out_hidden_size": 64,
    "num_heads": 2,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 36,
    "deepstack_visual_indexes": [0, 1],
}
LIMITS = {"shortest_edge": 32 * 32 * 4, "longest_edge": 32 * 32 * 8}
SETTINGS = MediaSettings(
    config={"vision_config": VISION, **TOKENS},
    processors={"image": {"size": LIMITS}, "video": {"size": LIMITS}},
)
LETTERS = {letter: 20 + i for i, letter in enumerate("<>.0123456789 second")}
INTERLEAVED = {**TEXT["rope_parameters"], "mrope_section": [4, 2, 2], "mrope_interleaved": True}
QWEN3 = {**TEXT, "head_dim": 16, "num_hidden_layers": 3, "rope_parameters": INTERLEAVED}
MOE = {
    "moe_intermediate_size": 24,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "mlp_only_layers": [1],
}
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "dense": (Qwen3VLConfig, Qwen3VLForConditionalGeneration, {}),
    "experts": (Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration, MOE),
}
WITH_TOKENIZER = {"skip_tokenizer_init": False}


def processor(limits: dict[str, int] = LIMITS) -> Qwen2VLImageProcessorPil:
    grey = [0.5, 0.5, 0.5]
    return Qwen2VLImageProcessorPil(size=limits, patch_size=16, image_mean=grey, image_std=grey)


def frames_processor(video: VideoClip) -> Qwen2VLImageProcessorPil:
    """One whose limits make it give each frame the size that the whole video's limits ask for."""
    num_frames, height, width = video.frames.shape[:3]
    height, width = smart_resize(
        max(num_frames, 2), height, width, 2, 32, LIMITS["shortest_edge"], LIMITS["longest_edge"]
    )
    fixed = processor({"shortest_edge": height * width, "longest_edge": height * width})
    fixed.resize = lambda image, size, resample, factor, **_: super(
        Qwen2VLImageProcessorPil, fixed
    ).resize(image=image, size=type(size)(height=height, width=width), resample=resample)
    return fixed


def steps_of(token_ids: list[int], videos: list[VideoClip], grids: list[list[int]]) -> list[int]:
    """Each step of a video behind its seconds, between marks of its own; its number of squares."""
    ids, waiting = list(token_ids), list(zip(videos, grids, strict=True))
    while waiting:
        video, (time, height, width) = waiting.pop()
        times = [*video.timestamps, video.timestamps[-1]]
        place = len(ids) - 1 - ids[::-1].index(VIDEO)
        steps = []
        for step in range(time):
            text = f"<{(times[2 * step] + times[2 * step + 1]) / 2:.1f} seconds>"
            steps += [LETTERS[letter] for letter in text]
            steps += [START, *[-VIDEO] * (height * width // 4), END]
        assert ids[place - 1 : place + 2] == [START, VIDEO, END]
        ids[place - 1 : place + 2] = steps
    return [abs(token) for token in ids]


@pytest.fixture(scope="module", params=list(KINDS))
def cases(tmp_path_factory: pytest.TempPathFactory, request) -> tuple[Path, list[MediaCase]]:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("qwen3_vl")
    make_config, make_model, entries = KINDS[request.param]
    config = make_config(
        vision_config=VISION, text_config={**QWEN3, **entries}, **TOKENS, tie_word_embeddings=False
    )
    model = make_model(config).eval()
    randomize(model)
    model.save_pretrained(folder)
    letters = Tokenizer(models.BPE(vocab=LETTERS, merges=[]))
    PreTrainedTokenizerFast(tokenizer_object=letters).save_pretrained(folder)
    process = processor()
    process.to_json_file(folder / "preprocessor_config.json")
    found = []
    for prompt in PROMPTS:
        frames = [frames_processor(video) for video in prompt.videos]
        given, images, _ = reference_inputs(replace(prompt, videos=[]), process, process)
        pairs = [video_patches(*pair) for pair in zip(frames, prompt.videos, strict=True)]
        grids = [grid for _, grid in pairs]
        if pairs:
            given["pixel_values_videos"] = torch.cat([rows for rows, _ in pairs])
            given["video_grid_thw"] = torch.tensor(grids)
        ids = expanded(prompt.token_ids, images, [[1, 2, 2]] * len(grids))
        ids = steps_of(ids, prompt.videos, grids)
        found.append(prompt.case(expected_of(model, ids, given)))
    return folder, found


def test_tokens_are_those_of_transformers_in_every_way_of_running(cases, device) -> None:
    folder, found = cases
    check_equal(folder, found, most_rows=24, **WITH_TOKENIZER, device=device)


@pytest.mark.slow
def test_tokens_are_the_same_wherever_a_video_or_its_seconds_are_cut(cases) -> None:
    folder, found = cases
    check_every_cut(folder, found[2], **WITH_TOKENIZER)


def test_rows_that_transformers_has_encoded_stand_in_for_their_images(cases) -> None:
    """With those of later layers behind them."""
    folder, found = cases
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    kind = next(each for _, each, _ in KINDS.values() if each.__name__ == architecture)
    model = kind.from_pretrained(folder).eval()
    given_cases = []
    for prompt, case in zip(PROMPTS, found, strict=True):
        if prompt.images and not prompt.videos:
            given, images, _ = reference_inputs(prompt, processor(), processor())
            given_cases.append(replace(case, media=encoded_media(model, given, images, [])))
    assert len(given_cases) == 2
    for output, case in zip(run(folder, given_cases, **WITH_TOKENIZER), given_cases, strict=True):
        assert list(output.outputs[0].token_ids) == case.expected


def test_what_reaches_later_layers_decides_the_tokens(cases, monkeypatch) -> None:
    folder, found = cases
    forward = Qwen3VL.forward

    def without_deep(self, x_TD, step):
        self._num_deep = 0
        return forward(self, x_TD, step)

    monkeypatch.setattr(Qwen3VL, "forward", without_deep)
    (output,) = run(folder, found[:1], passes=1, **WITH_TOKENIZER)
    assert list(output.outputs[0].token_ids) != found[0].expected


def test_positions_that_are_not_stretched_are_noticed(cases, monkeypatch) -> None:
    folder, found = cases

    def cut(self, x_H, count):
        return x_H[torch.arange(count) % len(x_H)]

    monkeypatch.setattr(StretchedPositions, "_stretched", cut)
    (output,) = run(folder, found[1:2], passes=1, **WITH_TOKENIZER)
    assert list(output.outputs[0].token_ids) != found[1].expected


def test_a_slower_video_is_another_prompt(cases) -> None:
    folder, found = cases
    video = found[2].media["video"][0]
    slower = VideoClip(frames=video.frames, timestamps=tuple(4 * each for each in video.timestamps))
    (output,) = run(
        folder, [replace(found[2], media={"video": [slower]})], passes=1, **WITH_TOKENIZER
    )
    assert list(output.outputs[0].token_ids) != found[2].expected


def test_seconds_need_a_tokenizer(cases) -> None:
    folder, found = cases
    with pytest.raises(Exception, match="skip_tokenizer_init"):
        run(folder, found[2:3], passes=1)


@pytest.mark.parametrize("size", [(56, 56), (30, 230), (13, 300), (201, 199)])
def test_patches_are_those_of_the_models_own_processor(size) -> None:
    image = picture(*size)
    made = inputs.patches(
        "image", MediaItem(modality="image", value=image, content_hash=""), SETTINGS
    )
    expected = processor()(image, return_tensors="pt")
    assert made["grid"].tolist() == expected["image_grid_thw"][0].tolist()
    patches = made["patches"].expand(-1, -1, 2, -1, -1).numpy()
    levels = (expected["pixel_values"].reshape(patches.shape).numpy() * 0.5 + 0.5) * 255
    assert np.abs(levels - patches).max() <= 1


@pytest.mark.parametrize(
    "sides", [(2, 60, 90), (5, 60, 90), (7, 20, 300), (9, 500, 300), (4, 10, 12)]
)
def test_a_videos_frames_are_as_large_as_in_the_models_own_processor(sides) -> None:
    video = clip(*sides)
    item = MediaItem(modality="video", value=video, content_hash="")
    time, rows, columns = inputs.grid_of(item, SETTINGS)
    height, width = smart_resize(
        *sides, factor=32, min_pixels=LIMITS["shortest_edge"], max_pixels=LIMITS["longest_edge"]
    )
    assert (time, rows * 16, columns * 16) == (-(-sides[0] // 2), height, width)


def test_seconds_are_those_between_the_first_and_last_frame_of_a_step() -> None:
    frames = np.zeros((3, 2, 2, 3), np.uint8)
    assert inputs.seconds_of_steps(VideoClip(frames=frames, timestamps=(0.0, 1.0, 3.0)), 2) == [
        0.5,
        3.0,
    ]
    assert inputs.seconds_of_steps(VideoClip(frames=frames), 2) == [0.5 / 24, 2 / 24]


@pytest.mark.slow
def test_adapters_of_the_language_model_are_those_of_peft(cases, tmp_path) -> None:
    check_adapted(*cases, tmp_path, **WITH_TOKENIZER)
