"""The blocks of a GIF: how many frames it has and that it is whole, without decoding one."""

from __future__ import annotations

from typing import Final

from octavo_registry.modalities import MediaError

HEADER: Final = 13
EXTENSION, IMAGE, TRAILER = 0x21, 0x2C, 0x3B


def count_gif_frames(data: bytes, *, most: int) -> int:
    """Return the number of frames, or ``most + 1`` for more; a MediaError for a file that is cut.

    A whole file may lack its trailer, if it ends with a whole frame.
    """
    try:
        position = HEADER + _colour_bytes(data[10])
        num_frames = 0
        while position < len(data) and data[position] != TRAILER and num_frames <= most:
            if data[position] == EXTENSION:
                position += 2
            elif data[position] == IMAGE:
                num_frames += 1
                position += 11 + _colour_bytes(data[position + 9])  # and the size of its codes
            else:
                raise MediaError(f"a GIF with a damaged block {num_frames} frames from its start")
            while data[position]:  # sub-blocks, each after its length
                position += 1 + data[position]
            position += 1
    except IndexError as error:
        raise MediaError("a GIF that is cut") from error
    if num_frames == 0:
        raise MediaError("a GIF without a frame")
    return num_frames


def _colour_bytes(flags: int) -> int:
    """The size of the colour table that follows."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0
