"""Where a prompt's images stand for LLaVA, and the pixels that its encoder takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from octavo.errors import PromptError
from octavo.inputs.media import checked_rows, expand_placeholders, pixel_scale
from octavo_plugins.models.pixtral import KWARGS as PIXTRAL_KWARGS
from octavo_registry.modalities import ROWS, MediaItem, MediaPrompt, MediaSettings

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


def place_images(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    """Each image token becomes as many as there are patches, or as Pixtral has them."""
    if is_pixtral(settings.config):
        from octavo_plugins.models.pixtral.inputs import place_images as place_rows

        return place_rows(prompt, settings)
    tokens = {"image": media_token(settings, "image", 32000)}
    return expand_placeholders(prompt, tokens, [num_rows(settings)] * len(prompt.media))


def is_pixtral(config: Mapping[str, Any]) -> bool:
    """Whether the checkpoint is a Pixtral, which has the same name."""
    return bool(config["vision_config"].get("model_type") == "pixtral")


def processor_kwargs(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A Pixtral's images may have any size; others are all of one."""
    return PIXTRAL_KWARGS if is_pixtral(config) else {}


def num_rows(settings: MediaSettings) -> int:
    """Patches of an image, and the class token where it is not dropped."""
    vision = settings.config["vision_config"]
    count: int = (vision["image_size"] // vision["patch_size"]) ** 2
    has_class = vision.get("model_type", "clip_vision_model") == "clip_vision_model"
    drops_class = settings.config.get("vision_feature_select_strategy", "default") == "default"
    return count + (has_class and not drops_class)


def given_rows(
    modality: str, tensors: Mapping[str, Tensor], settings: MediaSettings
) -> Mapping[str, Tensor]:
    """Rows of an image that came encoded."""
    if is_pixtral(settings.config):
        raise PromptError("a Pixtral takes images, and no rows of them")
    text = settings.config["text_config"]
    size = text.get("hidden_size", 4096)  # which the first checkpoints leave to their name
    return {ROWS: checked_rows(modality, tensors, num_rows=num_rows(settings), row_size=size)}


def media_token(settings: MediaSettings, modality: str, default: int) -> int:
    """The id that a config has under one of two names."""
    config = settings.config
    found: int = config.get(f"{modality}_token_index", config.get(f"{modality}_token_id", default))
    return found


def pixels(modality: str, item: MediaItem, settings: MediaSettings) -> Mapping[str, Tensor]:
    """The image's middle square, resized as CLIP's processor does."""
    if is_pixtral(settings.config):
        from octavo_plugins.models.pixtral.inputs import pixels as whole_image

        return whole_image(modality, item, settings)
    size = settings.config["vision_config"]["image_size"]
    return {
        "pixels": stacked([middle_square(item.value, size)]),
        "scale": pixel_scale(settings, modality, MEAN, STD),
    }


def middle_square(image: Image.Image, size: int) -> Image.Image:
    """What is left of an image whose shorter side is resized."""
    from PIL import Image

    resized = image.resize(size_around(size, *image.size), Image.Resampling.BICUBIC)
    left, top = (resized.width - size) // 2, (resized.height - size) // 2
    return resized.crop((left, top, left + size, top + size))


def size_around(size: int, width: int, height: int) -> tuple[int, int]:
    """Width and height of a picture whose shorter side is resized."""
    # The longer side is cut to whole pixels in this order of products, as the reference does.
    if width < height:
        return size, int(size * height / width)
    return int(size * width / height), size


def stacked(images: list[Any]) -> Tensor:
    """Bytes [N, 3, H, W] of images of one size."""
    import numpy as np
    import torch

    pixels_NHWC = torch.from_numpy(np.stack([np.asarray(image) for image in images]))
    return pixels_NHWC.permute(0, 3, 1, 2).contiguous()
