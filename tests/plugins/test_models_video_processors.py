"""Frames of videos, as the models' own processors resize and order them with torchvision."""

from __future__ import annotations

import importlib

import pytest
import torch

import video_processors
from octavo.inputs.frames import resized_frames
from octavo_registry.modalities import MediaItem, MediaSettings, VideoClip
from video_processors import PROCESSORS, SHAPES

every_model = pytest.mark.parametrize("model", PROCESSORS)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


@every_shape
@every_model
def test_a_clip_becomes_what_was_recorded(model, shape) -> None:
    check_same(model, shape, video_processors.recorded(PROCESSORS[model], shape))


@every_shape
@every_model
def test_a_clip_becomes_what_torchvision_makes_of_it_here(model, shape) -> None:
    pytest.importorskip("torchvision")
    made = video_processors.made(PROCESSORS[model], video_processors.clip(shape))
    check_same(model, shape, made)


def test_frames_that_lie_backwards_and_cannot_be_written_are_resized_as_others() -> None:
    frames = video_processors.clip(SHAPES[0])
    frames.flags.writeable = False
    found = resized_frames(VideoClip(frames=frames[::-1]), 20, 30)
    assert torch.equal(found.flip(0), resized_frames(VideoClip(frames=frames.copy()), 20, 30))


def test_the_recording_is_of_these_clips_alone() -> None:
    names = {
        name.rsplit("/", 1)[0] for name in video_processors.load_file(video_processors.RECORDING)
    }
    processors = {each.name for each in PROCESSORS.values()}
    assert names == {
        f"{name}/{'x'.join(map(str, shape))}" for name in processors for shape in SHAPES
    }


def check_same(model: str, shape: tuple[int, int, int], expected: dict[str, torch.Tensor]) -> None:
    """Ours are of the same form, and nowhere more than a grey level away."""
    processor = PROCESSORS[model]
    settings = MediaSettings(
        config={"vision_config": processor.vision}, processors={"video": processor.entries}
    )
    inputs = importlib.import_module(f"octavo_plugins.models.{model}.inputs")
    to_tensors = inputs.patches if "patch_size" in processor.vision else inputs.pixels
    value = VideoClip(frames=video_processors.clip(shape))
    found = to_tensors("video", MediaItem(modality="video", value=value, content_hash=""), settings)
    levels = found["patches" if "patches" in found else "pixels"]
    assert levels.shape == expected["levels"].shape
    assert (levels.int() - expected["levels"].int()).abs().max() <= 1
    assert torch.equal(found["scale"].view(2, 3), expected["scale"])
    assert found.get("grid", torch.zeros(0)).tolist() == expected["grid"].tolist()
