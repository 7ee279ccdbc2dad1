"""Log-mel features of sound, as Whisper was trained on them and models around its encoder are.

Axis suffixes: N sounds, S samples, F frames, K frequencies of a frame, M mels.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

RATE = 16_000
"""Samples per second."""
HOP = 160
"""Samples from frame to frame."""
WINDOW = 400
BLOCK = 3000
"""Frames of which the spectrum is made at a time."""
FLOOR = 1e-10
RANGE = 8.0
"""Powers of ten below a sound's loudest mel at which what is quieter is cut."""
LINEAR_HERTZ, LINEAR_MELS, LOG_STEP = 1000.0, 15.0, np.log(6.4) / 27
"""Slaney's scale: mels are even in Hertz up to there, and in its logarithm beyond."""


class LogMel(nn.Module):
    """Features of sounds of one length, each scaled by its own loudest mel.

    It runs where the model does: 30 seconds take a CPU's core 4 ms, and samples are what is fewest
    bytes to send.
    """

    def __init__(self, num_mels: int, device: torch.device) -> None:
        super().__init__()
        self._window_S: Tensor
        self._filters_KM: Tensor
        self.register_buffer(
            "_window_S", torch.hann_window(WINDOW, device=device), persistent=False
        )
        filters_KM = torch.from_numpy(mel_filters(num_mels)).to(device, torch.float32)
        self.register_buffer("_filters_KM", filters_KM, persistent=False)
        self._num_mels = num_mels
        self.bytes_per_frame = 4 * (WINDOW + 4 * (WINDOW // 2 + 1) + 3 * num_mels)
        """What a call holds for each frame of a block."""

    def encode_bytes(self, num_frames: int) -> int:
        """Peak bytes for so many frames of any sounds, one after the other."""
        kept = 4 * 3 * self._num_mels
        return min(num_frames, BLOCK) * self.bytes_per_frame + num_frames * kept

    def of(self, samples_S: Tensor, num_samples: int) -> Tensor:
        """[M, F] of one sound with silence behind it, up to so many samples."""
        padded_S = F.pad(samples_S, (0, num_samples - len(samples_S)))
        features_MF: Tensor = self(padded_S[None])[0]
        return features_MF

    def forward(self, samples_NS: Tensor) -> Tensor:
        """[N, M, F], a frame for every whole ``HOP``; at least 201 samples, of silence or not."""
        num_frames = samples_NS.shape[1] // HOP
        around_NS = F.pad(samples_NS.float(), (WINDOW // 2, WINDOW // 2), mode="reflect")
        frames_NFS = around_NS.unfold(1, WINDOW, HOP)[:, :num_frames]
        blocks = frames_NFS.split(BLOCK, dim=1)
        mels_NFM = torch.cat([self._mels(each_NFS) for each_NFS in blocks], dim=1)
        loudest_N11 = mels_NFM.amax((1, 2), keepdim=True)
        return torch.maximum(mels_NFM, loudest_N11 - RANGE).add_(4).div_(4).mT

    def _mels(self, frames_NFS: Tensor) -> Tensor:
        spectrum_NFK = torch.fft.rfft(frames_NFS * self._window_S)
        power_NFK = spectrum_NFK.real.square() + spectrum_NFK.imag.square()
        mels_NFM: Tensor = (power_NFK @ self._filters_KM).clamp_(min=FLOOR).log10_()
        return mels_NFM


def mel_filters(num_mels: int) -> NDArray[np.float64]:
    """Triangles [K, M] over the frequencies, even on Slaney's scale, each of the same area."""
    frequencies_K = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    top = LINEAR_MELS + np.log(RATE / 2 / LINEAR_HERTZ) / LOG_STEP
    corners = _hertz(np.linspace(0, top, num_mels + 2))
    low, middle, high = corners[:-2], corners[1:-1], corners[2:]
    rising_KM = (frequencies_K[:, None] - low) / (middle - low)
    falling_KM = (high - frequencies_K[:, None]) / (high - middle)
    triangles_KM = np.maximum(0, np.minimum(rising_KM, falling_KM))
    filters_KM: NDArray[np.float64] = triangles_KM * (2 / (high - low))
    return filters_KM


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    beyond = np.maximum(mels - LINEAR_MELS, 0)
    hertz: NDArray[np.float64] = (
        np.minimum(mels, LINEAR_MELS) * (LINEAR_HERTZ / LINEAR_MELS) * np.exp(beyond * LOG_STEP)
    )
    return hertz
