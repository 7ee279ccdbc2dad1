"""Canvases of square tiles for images of any shape, as LLaVA-NeXT and its successors choose them.

All sizes are (height, width).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from octavo.inputs.media import pixel_scale
from octavo_plugins.models.llava.inputs import MEAN, STD, stacked
from octavo_registry.modalities import MediaItem, MediaSettings

if TYPE_CHECKING:
    from torch import Tensor

Size = tuple[int, int]
CANVASES = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))


def best_canvas(image: Size, canvases: Iterable[Size]) -> Size:
    """The one that keeps most of the image's pixels, and then wastes fewest of its own."""
    height, width = image

    def merit(canvas: Size) -> tuple[int, int]:
        scale = min(canvas[1] / width, canvas[0] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - canvas[0] * canvas[1]

    return max(canvases, key=merit)  # the first of equals


def fitted(image: Size, canvas: Size) -> Size:
    """The image's size once it fills one side of the canvas."""
    (height, width), (rows, columns) = image, canvas
    if columns / width < rows / height:
        return min(math.ceil(height * (columns / width)), rows), columns
    return rows, min(math.ceil(width * (rows / height)), columns)


def covered(image: Size, patches: Size) -> Size:
    """How many rows and columns of the canvas's patches are the image's, and no border's."""
    (height, width), (rows, columns) = image, patches
    if width / height > columns / rows:
        border = (rows - int(round(height * (columns / width), 7))) // 2
        return rows - 2 * border, columns
    border = (columns - int(round(width * (rows / height), 7))) // 2
    return rows, columns - 2 * border


def tiles(
    item: MediaItem, settings: MediaSettings, default: Iterable[Size] = CANVASES
) -> Mapping[str, Tensor]:
    """The whole image and its tiles row by row as ``pixels``, and how they lie as ``layout``.

    A layout is tiles down and across, and the rows and columns of patches that are the image's.
    """
    import torch
    from PIL import Image

    vision = settings.config["vision_config"]
    side, per_side = vision["image_size"], vision["image_size"] // vision["patch_size"]
    image: Any = item.value
    size = (image.height, image.width)
    canvas = best_canvas(size, map(tuple, settings.config.get("image_grid_pinpoints") or default))
    height, width = fitted(size, canvas)
    painted = Image.new("RGB", canvas[::-1])
    resized = image.resize((width, height), Image.Resampling.BICUBIC)
    painted.paste(resized, ((canvas[1] - width) // 2, (canvas[0] - height) // 2))
    pieces = [image.resize((side, side), Image.Resampling.BICUBIC)]
    pieces += [
        painted.crop((left, top, left + side, top + side))
        for top in range(0, canvas[0], side)
        for left in range(0, canvas[1], side)
    ]
    down, across = canvas[0] // side, canvas[1] // side
    kept = covered(size, (down * per_side, across * per_side))
    return {
        "pixels": stacked(pieces),
        "layout": torch.tensor((down, across, *kept), dtype=torch.int32),
        "scale": pixel_scale(settings, "image", MEAN, STD),
    }
