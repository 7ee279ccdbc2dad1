"""What our limits and hashes add to a JPEG of 12 megapixels: python -m benchmarks.image_decoding

Decoding, and resizing to 1024 pixels, of one file: by Pillow alone, by the image plugin, and by a
whole MediaReader (threads, budget, SHA-256), in turns in one run; read the ratios, not the times.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from collections.abc import Callable

import numpy as np
from PIL import Image

from octavo.config.media import MediaConfig
from octavo.multimodal.reader import MediaReader
from octavo_registry import MediaLimits, PluginHost

SIZE = (4000, 3000)
RESIZED = (1024, 768)


def make_jpeg() -> bytes:
    """Soft noise: about as many bytes as a photograph of that size."""
    coarse = np.random.default_rng(0).integers(0, 256, (750, 1000, 3), np.uint8)
    image = Image.fromarray(coarse).resize(SIZE, Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def resize(image: Image.Image) -> None:
    """What every image goes through next."""
    image.resize(RESIZED, Image.Resampling.BICUBIC)


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    data = make_jpeg()
    limits = MediaLimits(max_pixels=89_000_000, max_frames=512, max_seconds=600.0)
    host = PluginHost.discover()
    decoder, reader = host.modalities.load("image")(), MediaReader(host, MediaConfig())

    def whole() -> Image.Image:
        image: Image.Image = reader.read_blocking(reader.split({"image": data}))[0].value
        return image

    ways: dict[str, Callable[[], Image.Image]] = {
        "pillow": lambda: Image.open(io.BytesIO(data)).convert("RGB"),
        "plugin": lambda: decoder.decode(data, limits, {}),
        "reader": whole,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, decode in ways.items():
            began = time.process_time()
            resize(decode())
            if turn:  # the first warms up
                seconds[name].append(time.process_time() - began)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    print(f"{len(data) / 1e6:.1f} MB, CPU time, medians of {rounds}")
    for name, median in medians.items():
        print(f"{name}: {median * 1e3:6.1f} ms  {median / medians['pillow']:.3f}x")


if __name__ == "__main__":
    main()
