"""What the models' own processors of videos make of small clips: recorded, or made here.

Those of Transformers need torchvision, which nothing else here does. Where it is installed,
``python tests/video_processors.py`` makes the recording beside this file anew.

Axis suffixes: F frames, C colours, H height, W width.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from octavo_registry.modalities import VideoClip

RECORDING = Path(__file__).with_suffix(".safetensors")
SIDE = 24
QWEN = {"patch_size": 4, "temporal_patch_size": 2}
LEAST, MOST = 8 * 8 * 4, 8 * 8 * 16
SHAPES = ((2, 37, 53), (3, 90, 31), (4, 24, 24), (2, 7, 64), (5, 16, 12), (2, 225, 190))
"""Of clips: frames, height and width."""


@dataclass(frozen=True)
class Processor:
    """A class of Transformers', and the same said to ours."""

    name: str
    arguments: dict[str, Any]
    vision: dict[str, Any]
    """Our model's vision_config."""
    entries: dict[str, Any]
    """Our processor's."""


def _of_qwen(name: str, least: int, most: int) -> Processor:
    size = {"shortest_edge": least, "longest_edge": most}
    return Processor(
        name=name,
        arguments={**QWEN, "merge_size": 2, "size": size, "cap_pixels_per_frame": False},
        vision={**QWEN, "spatial_merge_size": 2},
        entries={"size": size},
    )


def _of_squares(name: str, **arguments: Any) -> Processor:
    return Processor(name=name, arguments=arguments, vision={"image_size": SIDE}, entries={})


SQUARE = {"height": SIDE, "width": SIDE}
QWEN2 = _of_qwen("Qwen2VLVideoProcessor", LEAST, MOST)
PROCESSORS = {
    "internvl": _of_squares("InternVLVideoProcessor", size=SQUARE),
    "llava_next_video": _of_squares(
        "LlavaNextVideoVideoProcessor", size={"shortest_edge": SIDE}, crop_size=SQUARE
    ),
    "llava_onevision": _of_squares("LlavaOnevisionVideoProcessor", size=SQUARE),
    "qwen2_vl": QWEN2,
    "qwen2_5_vl": QWEN2,
    "qwen3_vl": _of_qwen("Qwen3VLVideoProcessor", 2 * LEAST, 3 * MOST),
}
"""By the folder of the model's plugin."""


def frames_resized(video: VideoClip, height: int, width: int) -> list[Image.Image]:
    """Frames as torchvision resizes them, which asks torch, for processors of pictures."""
    frames_FCHW = torch.from_numpy(np.ascontiguousarray(video.frames)).permute(0, 3, 1, 2)
    resized = torch.nn.functional.interpolate(
        frames_FCHW, (height, width), mode="bicubic", antialias=True
    )
    return [Image.fromarray(frame.permute(1, 2, 0).contiguous().numpy()) for frame in resized]


def clip(shape: tuple[int, int, int]) -> np.ndarray:
    """Noise, in which no pixel can be told from its neighbours."""
    return np.random.default_rng(shape).integers(0, 256, (*shape, 3), dtype=np.uint8)


def made(processor: Processor, frames_FHWC: np.ndarray) -> dict[str, torch.Tensor]:
    """Grey levels as the processor's model takes them, their means and deviations, and the grid."""
    import transformers

    process = getattr(transformers, processor.name)(**processor.arguments)
    frames_FCHW = torch.from_numpy(frames_FHWC).permute(0, 3, 1, 2)
    outputs = process(videos=[frames_FCHW], do_sample_frames=False, return_tensors="pt")
    values = outputs["pixel_values_videos"]
    grid = outputs.get("video_grid_thw", torch.zeros(1, 0))[0].int()
    # Patches [patches, colours, frames, height, width], or frames [F, C, H, W].
    values = values.view(len(values), 3, 2, 4, 4) if len(grid) else values[0]
    scale = torch.tensor([process.image_mean, process.image_std])
    mean, std = scale.view(2, 1, 3, *[1] * (values.dim() - 2))
    levels = (values * std + mean) * 255
    if (levels - levels.round()).abs().max() > 0.01:
        raise ValueError(f"{processor.name} does not resize to whole grey levels")
    return {"levels": levels.round().byte(), "scale": scale, "grid": grid}


def recorded(processor: Processor, shape: tuple[int, int, int]) -> dict[str, torch.Tensor]:
    """The same from the recording."""
    tensors, start = load_file(RECORDING), _key(processor, shape, "")
    return {
        name.removeprefix(start): each for name, each in tensors.items() if name.startswith(start)
    }


def _key(processor: Processor, shape: tuple[int, int, int], name: str) -> str:
    return "/".join((processor.name, "x".join(map(str, shape)), name))


def record() -> None:
    """Write the recording."""
    tensors = {
        _key(processor, shape, name): each.contiguous()
        for processor in PROCESSORS.values()
        for shape in SHAPES
        for name, each in made(processor, clip(shape)).items()
    }
    save_file(tensors, RECORDING)


if __name__ == "__main__":
    record()
