"""LLaVA-OneVision against Transformers: images and videos, pooled where there is too much."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
    LlavaOnevisionImageProcessorPil,
)

from media_adapters import check_adapted
from media_equality import MediaCase, check_equal, greedy, randomize, which_keep
from media_pictures import TEXT, VISION, clip, expanded, levels, picture
from octavo.inputs.media import read_settings
from octavo.layers.vision import normalised
from octavo_plugins.models.llava_onevision.inputs import pixels
from octavo_registry.modalities import MediaItem, VideoClip
from video_processors import frames_resized

IMAGE, VIDEO = 150, 151
CANVASES = [[21 * down, 21 * across] for down in range(1, 4) for across in range(1, 4)]
PICTURES = [picture(*size) for size in ((21, 21), (40, 77), (63, 60), (64, 64))]
CLIPS = [clip(3, 30, 50), clip(1, 21, 21), clip(3, 50, 30)]
PROMPTS: tuple[tuple[list[int], list[int], list[int]], ...] = (
    ([5, IMAGE, 9, 11], [1], []),
    ([IMAGE, 7, 8, IMAGE, 3], [2, 0], []),
    ([4, 5, 6, 7], [], []),
    ([3, VIDEO, 8, 9], [], [0]),
    ([VIDEO, 4, IMAGE, 9, VIDEO, 1], [3], [1, 2]),
)
PROCESS: dict[str, Any] = {
    "size": {"height": 21, "width": 21},
    "image_grid_pinpoints": CANVASES,
    "image_mean": [0.5, 0.4, 0.5],
    "image_std": [0.5, 0.5, 0.4],
}


def frames_of(video: VideoClip) -> torch.Tensor:
    """Each frame squeezed into a square."""
    frames = [np.asarray(frame) / 255.0 for frame in frames_resized(video, 21, 21)]
    scaled = (np.stack(frames) - PROCESS["image_mean"]) / PROCESS["image_std"]
    return torch.from_numpy(scaled).float().permute(0, 3, 1, 2)


@torch.no_grad()
def embeddings(
    model: LlavaOnevisionForConditionalGeneration,
    ids: list[int],
    images: dict[str, Any],
    media: dict[str, list[Any]],
) -> torch.Tensor:
    """Of a prompt with the rows of its items in the places of their tokens."""
    ids_BT = torch.tensor([ids])
    rows_BTD = model.get_input_embeddings()(ids_BT)
    image_rows = model.model.get_image_features(**images).pooler_output
    newline_1D = model.model.image_newline[None]
    video_rows = []
    for each in media["video"]:
        rows_TD = model.model.get_video_features(frames_of(each)[None]).pooler_output[0]
        # Whether the newline stands behind these differs by version.
        video_rows.append(torch.cat([rows_TD[: len(each.frames) * 4], newline_1D]))
    rows_BTD[ids_BT == IMAGE] = torch.cat(list(image_rows))
    rows_BTD[ids_BT == VIDEO] = torch.cat(video_rows)
    return rows_BTD


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[MediaCase]]:
    folder = tmp_path_factory.mktemp("llava_onevision")
    torch.manual_seed(1)
    config = LlavaOnevisionConfig(
        vision_config={
            **VISION,
            "image_size": 21,
            "model_type": "siglip_vision_model",
            "vision_use_head": False,
        },
        text_config={**TEXT, "model_type": "qwen2"},
        image_token_index=IMAGE,
        video_token_index=VIDEO,
        image_grid_pinpoints=CANVASES,
        vision_aspect_ratio="anyres_max_4",
    )
    model = LlavaOnevisionForConditionalGeneration(config).eval()
    randomize(model, 0.3)
    torch.nn.init.normal_(model.model.image_newline, std=0.5)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESS))
    process = LlavaOnevisionImageProcessorPil(**PROCESS)
    cases = []
    for ids, images, videos in PROMPTS:
        inputs: dict[str, Any] = {}
        media: dict[str, list[Any]] = {}
        counts: dict[int, list[int]] = {}
        if images:
            media["image"] = [PICTURES[i] for i in images]
            inputs.update(process(media["image"], return_tensors="pt"))
            with torch.no_grad():
                features = model.model.get_image_features(**inputs).pooler_output
            counts[IMAGE] = [len(each) for each in features]
        if videos:
            media["video"] = [CLIPS[i] for i in videos]
            counts[VIDEO] = [len(each.frames) * 4 + 1 for each in media["video"]]
        if len(videos) == 1:
            inputs["pixel_values_videos"] = frames_of(media["video"][0])[None]
        elif videos:  # of unequal lengths, which the reference takes as embeddings alone
            inputs = {"inputs_embeds": embeddings(model, expanded(ids, counts), inputs, media)}
        expected = greedy(model, expanded(ids, counts), **inputs)
        cases.append(MediaCase(token_ids=ids, media=media, expected=expected))
    return folder, cases


def test_tokens_are_those_of_transformers_in_every_way_of_running(made, device) -> None:
    check_equal(*made, most_rows=9 + 6 * 7, device=device)


def test_swapped_images_and_turned_frames_are_noticed(made) -> None:
    folder, cases = made
    first, second = cases[1].media["image"]
    (video,) = cases[3].media["video"]
    backwards = VideoClip(frames=video.frames[::-1].copy(), timestamps=video.timestamps)
    changed: list[tuple[MediaCase, dict[str, list[Any]]]] = [
        (cases[1], {"image": [second, first]}),
        (cases[3], {"video": [video]}),
        (cases[3], {"video": [backwards]}),
    ]
    assert which_keep(folder, changed) == [False, True, False]


@pytest.mark.parametrize("image", PICTURES, ids=lambda each: f"{each.height}x{each.width}")
def test_tiles_are_those_of_the_processor_within_a_grey_level(made, image) -> None:
    folder, _ = made
    config = json.loads((folder / "config.json").read_text())
    item = MediaItem(modality="image", value=image, content_hash="")
    found = pixels("image", item, read_settings(folder, config))
    tiles = normalised(found["pixels"], *found["scale"], torch.float32)
    expected = LlavaOnevisionImageProcessorPil(**PROCESS)(image, return_tensors="pt")
    assert tiles.shape == expected["pixel_values"][0].shape
    assert levels(tiles, expected["pixel_values"][0], PROCESS["image_std"]) <= 1


@pytest.mark.slow
def test_adapters_of_the_language_model_are_those_of_peft(made, tmp_path) -> None:
    check_adapted(*made, tmp_path)
