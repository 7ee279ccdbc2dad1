"""Where a prompt's images stand for LLaVA, and the pixels that its encoder takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from octavo.inputs.media import expand_placeholders
from octavo_registry.modalities import MediaItem, MediaPrompt, MediaSettings

if TYPE_CHECKING:
    from torch import Tensor

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


def place_images(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    """Each image token becomes as many as there are patches."""
    vision = settings.config["vision_config"]
    count = (vision["image_size"] // vision["patch_size"]) ** 2
    if settings.config.get("vision_feature_select_strategy", "default") != "default":
        count += 1
    image = settings.config.get("image_token_index", settings.config.get("image_token_id"))
    return expand_placeholders(prompt, {"image": image}, [count] * len(prompt.media))


def pixels(modality: str, item: MediaItem, settings: MediaSettings) -> Mapping[str, Tensor]:
    """The image's middle square, resized as CLIP's processor does."""
    import numpy as np
    import torch
    from PIL import Image

    size = settings.config["vision_config"]["image_size"]
    image: Image.Image = item.value
    width, height = image.size
    scale = size / min(width, height)
    resized = image.resize(
        (max(size, int(width * scale)), max(size, int(height * scale))), Image.Resampling.BICUBIC
    )
    left, top = (resized.width - size) // 2, (resized.height - size) // 2
    square = resized.crop((left, top, left + size, top + size))
    return {"pixels": torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()}
