"""Where a prompt's images stand for LLaVA-NeXT, and the tiles that its encoder takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from octavo.inputs.media import expand_placeholders
from octavo_plugins.models.llava.inputs import media_token
from octavo_plugins.models.llava_next.canvas import tiles
from octavo_registry.modalities import MediaItem, MediaPrompt, MediaSettings

if TYPE_CHECKING:
    from torch import Tensor


def place_images(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    """A token for each patch of the whole image and of the tiles, and one after each row."""
    counts = [num_rows(item, settings) for item in prompt.media]
    return expand_placeholders(prompt, {"image": media_token(settings, "image", 32000)}, counts)


def num_rows(item: MediaItem, settings: MediaSettings) -> int:
    """Rows of one image."""
    vision = settings.config["vision_config"]
    _, _, rows, columns = item.tensors["layout"].tolist()
    count: int = (vision["image_size"] // vision["patch_size"]) ** 2 + rows * (columns + 1)
    return count


def pixels(modality: str, item: MediaItem, settings: MediaSettings) -> Mapping[str, Tensor]:
    """Tiles of an image."""
    return tiles(item, settings)
