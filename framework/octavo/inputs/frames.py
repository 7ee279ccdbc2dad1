"""Frames of videos in the size that a model takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from octavo_registry.modalities import VideoClip


def resized_frames(clip: VideoClip, width: int, height: int) -> Tensor:
    """Bytes of all frames, [frames, 3, height, width], whose colours lie next to each other.

    Torch resizes them, as in the models' own processors of videos, and not Pillow: its weights are
    rounded otherwise, and it may begin with the other side, by which levels in noise are up to 17
    away.
    """
    import torch

    frames_FHWC = torch.from_numpy(np.require(clip.frames, requirements=["C", "W"]))
    frames_FCHW = frames_FHWC.permute(0, 3, 1, 2)
    return torch.nn.functional.interpolate(
        frames_FCHW, (height, width), mode="bicubic", antialias=True
    )
