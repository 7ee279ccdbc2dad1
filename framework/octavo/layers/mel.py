"""Log-mel features of sound, as Whisper was trained on them and models around its encoder are.

Axis suffixes: N sounds, S samples, F frames, K frequencies of a frame, M mels.
"""

from __future__ import annotations

import librosa
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo.multimodal.librosa_loading import loading_librosa

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
        with loading_librosa():
            filters_MK = librosa.filters.mel(sr=RATE, n_fft=WINDOW, n_mels=num_mels)
        filters_KM = torch.from_numpy(filters_MK).to(device).T.contiguous()
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
