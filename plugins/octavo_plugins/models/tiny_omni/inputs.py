"""Where media stand in prompts of the small model, and what its encoders take of them.

Axis suffixes: F frames, C colours, H height, W width, S samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.errors import PromptError
from octavo.inputs.media import expand_placeholders
from octavo.layers.mel import HOP, RATE
from octavo_registry.modalities import MediaItem, MediaPrompt, MediaSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image
    from torch import Tensor

GREY = (128, 128, 128)
MERGED = 4
"""Places of a picture or slices of sound that become one row: two by two, or four in a row."""


def place_media(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    """Each media token becomes as many as the item has rows."""
    tokens = {name: settings.config[f"{name}_token_id"] for name in ("image", "video", "audio")}
    return expand_placeholders(
        prompt, tokens, [num_rows(item.tensors, settings.config) for item in prompt.media]
    )


def num_rows(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> int:
    """A picture has as many as all others, a clip so many for each frame, a sound as all others."""
    if "pixels" in tensors:
        return len(tensors["pixels"]) * num_places(config["vision_config"]) // MERGED
    return int(config["audio_config"]["num_slices"]) // MERGED


def num_places(vision: Mapping[str, Any]) -> int:
    """What convolutions, one more than there are channels between them, leave of a picture."""
    side = int(vision["image_size"]) >> (len(vision["channels"]) + 1)
    return side * side


def decode_options(modality: str, settings: MediaSettings) -> dict[str, Any]:
    """The frames of a clip that are seen, and the rate of sounds."""
    if modality == "video":
        return {"num_frames": settings.config["vision_config"]["num_frames"]}
    return {"rate": RATE} if modality == "audio" else {}


def tensors(modality: str, item: MediaItem, settings: MediaSettings) -> Mapping[str, Tensor]:
    """Bytes of all frames, or a sound's samples."""
    import torch

    if modality == "audio":
        return {"samples": torch.from_numpy(short_enough(item.value.samples, settings))}
    vision = settings.config["vision_config"]
    frames = [item.value] if modality == "image" else chosen(item.value.frames, vision)
    pixels_FHWC = np.stack([np.asarray(fitted(each, vision["image_size"])) for each in frames])
    pixels_FCHW = np.ascontiguousarray(pixels_FHWC.transpose(0, 3, 1, 2))
    return {"pixels": torch.from_numpy(pixels_FCHW)}


def chosen(frames: NDArray[np.uint8], vision: Mapping[str, Any]) -> list[Image.Image]:
    """Frames as evenly spread as a decoder does it, for those that came decoded."""
    from PIL import Image

    wanted = min(len(frames), vision["num_frames"])
    return [Image.fromarray(frames[index * len(frames) // wanted]) for index in range(wanted)]


def fitted(image: Image.Image, side: int) -> Image.Image:
    """The whole image in the middle of a grey square."""
    from PIL import Image

    scale = side / max(image.size)
    width, height = (max(1, round(each * scale)) for each in image.size)
    square = Image.new("RGB", (side, side), GREY)
    resized = image.resize((width, height), Image.Resampling.BICUBIC)
    square.paste(resized, ((side - width) // 2, (side - height) // 2))
    return square


def short_enough(samples_S: NDArray[np.float32], settings: MediaSettings) -> NDArray[np.float32]:
    """The samples of a sound that is heard whole."""
    most = window_samples(settings.config["audio_config"])
    if len(samples_S) > most:
        raise PromptError(
            f"a sound of {len(samples_S) / RATE:.2f} seconds; this model hears {most / RATE:g}: "
            "send it in parts"
        )
    return samples_S


def window_samples(audio: Mapping[str, Any]) -> int:
    """As many as there are slices."""
    return int(audio["num_slices"]) * int(audio["slice_size"]) * HOP
