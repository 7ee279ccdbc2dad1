"""LLaVA-NeXT-Video against Transformers: images in tiles, and clips of pooled frames."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    CLIPImageProcessorPil,
    LlavaNextVideoConfig,
    LlavaNextVideoForConditionalGeneration,
)
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)

from media_adapters import check_adapted
from media_equality import MediaCase, check_equal, greedy, randomize, which_keep
from media_pictures import TEXT, VISION, clip, expanded, levels, picture
from octavo.inputs.media import read_settings
from octavo.layers.vision import normalised
from octavo_plugins.models.llava_next_video.inputs import pixels
from octavo_registry.modalities import MediaItem, VideoClip
from video_processors import frames_resized

IMAGE, VIDEO = 150, 151
CANVASES = [[28, 56], [56, 28], [56, 56]]
PICTURES = [picture(*size) for size in ((40, 77), (90, 31))]
CLIPS = [clip(3, 30, 50), clip(1, 28, 28), clip(2, 70, 31)]
PROMPTS: tuple[tuple[list[int], list[int], list[int]], ...] = (
    ([5, IMAGE, 9, IMAGE, 11], [0, 1], []),
    ([4, 5, 6, 7], [], []),
    ([3, VIDEO, 8, 9], [], [0]),
    ([VIDEO, 4, IMAGE, 9], [1], [2]),
    ([VIDEO, 4], [], [1]),
)
CROP: dict[str, Any] = {
    "size": {"shortest_edge": 28},
    "crop_size": {"height": 28, "width": 28},
    "image_std": [0.3, 0.25, 0.2],
}
PROCESS = {**CROP, "image_grid_pinpoints": CANVASES}


def frames_of(video: VideoClip) -> torch.Tensor:
    """What CLIP's processor makes of each frame, which has the right size already."""
    process = CLIPImageProcessorPil(**CROP)
    height, width = video.frames.shape[1:3]
    shorter = min(height, width)
    resized = frames_resized(video, 28 * height // shorter, 28 * width // shorter)
    frames = [np.asarray(process(frame)["pixel_values"][0]) for frame in resized]
    return torch.from_numpy(np.stack(frames))


@pytest.fixture(scope="module", params=["average", "max"])
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[MediaCase]]:
    folder = tmp_path_factory.mktemp("llava_next_video")
    torch.manual_seed(1)
    config = LlavaNextVideoConfig(
        vision_config={**VISION, "model_type": "clip_vision_model"},
        text_config={**TEXT, "model_type": "llama"},
        image_token_index=IMAGE,
        video_token_index=VIDEO,
        image_grid_pinpoints=CANVASES,
        spatial_pool_mode=request.param,
        vision_feature_layer=[-1, -2],
    )
    model = LlavaNextVideoForConditionalGeneration(config).eval()
    randomize(model, 0.25)
    torch.nn.init.normal_(model.model.image_newline, std=0.5)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESS))
    process = LlavaNextImageProcessorPil(**PROCESS)
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
            counts[VIDEO] = [len(each.frames) * 4 for each in media["video"]]
            inputs["pixel_values_videos"] = frames_of(media["video"][0])[None]
        expected = greedy(model, expanded(ids, counts), **inputs)
        cases.append(MediaCase(token_ids=ids, media=media, expected=expected))
    return folder, cases


def test_tokens_are_those_of_transformers_in_every_way_of_running(made, device) -> None:
    check_equal(*made, most_rows=16 + 8 * 9, device=device)


def test_swapped_images_and_turned_frames_are_noticed(made) -> None:
    folder, cases = made
    first, second = cases[0].media["image"]
    (video,) = cases[2].media["video"]
    backwards = VideoClip(frames=video.frames[::-1].copy(), timestamps=video.timestamps)
    changed: list[tuple[MediaCase, dict[str, list[Any]]]] = [
        (cases[0], {"image": [second, first]}),
        (cases[2], {"video": [video]}),
        (cases[2], {"video": [backwards]}),
    ]
    assert which_keep(folder, changed) == [False, True, False]


def test_frames_are_those_of_the_processor_within_a_grey_level(made) -> None:
    folder, _ = made
    settings = read_settings(folder, json.loads((folder / "config.json").read_text()))
    for video in CLIPS:
        found = pixels("video", MediaItem(modality="video", value=video, content_hash=""), settings)
        frames = normalised(found["pixels"], *found["scale"], torch.float32)
        expected = frames_of(video)
        assert frames.shape == expected.shape
        assert levels(frames, expected, CROP["image_std"]) <= 1


@pytest.mark.slow
def test_adapters_of_the_language_model_are_those_of_peft(made, tmp_path) -> None:
    check_adapted(*made, tmp_path)
