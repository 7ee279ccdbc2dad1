"""What the conformance kit tries the decoder of sounds with."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import soundfile

from octavo.testing.media_items import sound
from octavo.testing.modality import ModalitySamples

HOUR = 3600
LOW_RATE = 8000


def samples() -> ModalitySamples:
    """Files of three kinds, and arrays."""
    encoded = {
        kind: _encoded(*sound(0, seed), kind) for seed, kind in enumerate(("WAV", "FLAC", "OGG"))
    }
    samples, rate = sound(1, 1)
    return ModalitySamples(
        encoded=encoded,
        given={
            "an array and its rate": sound(1, 0),
            "two channels and their rate": (np.stack([samples, -0.5 * samples]), rate),
        },
        broken={
            "the header of a WAV": encoded["WAV"][:44],
            "a FLAC without its beginning": encoded["FLAC"][100:],
            "zeros": bytes(100),
        },
        bombs={
            "an hour of silence": _encoded(np.zeros(HOUR * LOW_RATE, np.int16), LOW_RATE, "FLAC")
        },
        options={"rate": rate},
    )


def _encoded(
    samples: np.ndarray[tuple[int, ...], np.dtype[np.generic]], rate: int, kind: str
) -> bytes:
    file = BytesIO()
    soundfile.write(file, samples, rate, format=kind)
    return file.getvalue()
