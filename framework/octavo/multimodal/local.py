"""Files of this machine."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

from octavo.multimodal.budget import MediaBudget
from octavo_registry.modalities import MediaError


def read_file(path: str | os.PathLike[str], budget: MediaBudget) -> bytes:
    """Read a file that a user of ``LLM`` named in Python."""
    try:
        return _read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), budget)
    except OSError as error:
        raise MediaError(f"{os.fspath(path)!r} cannot be read: {error.strerror}") from error


def read_below(folder: Path, url: str, budget: MediaBudget) -> bytes:
    """Read the file of a file:// URL if it lies below the folder, once links are resolved.

    What is outside is refused in the same words as what is not there.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise MediaError(f"no valid URL: {error}") from error
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise MediaError("a file URL is written file:///FOLDER/FILE, with %3F and %23 for ? and #")
    try:
        root = folder.resolve(strict=True)
        inside = Path(unquote(parts.path)).resolve(strict=True).relative_to(root)
        return _read(_open_below(root, inside), budget)
    except (OSError, ValueError) as error:
        raise MediaError("there is no such file below the folder of allowed media") from error


def _open_below(root: Path, inside: Path) -> int:
    """Open step by step, following no link: one may have been put there after it was resolved."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in inside.parts[:-1]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            inner = os.open(name, flags, dir_fd=folder)
            os.close(folder)
            folder = inner
        # Without O_NONBLOCK opening a pipe waits for its writer.
        return os.open(inside.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    finally:
        os.close(folder)


def _read(descriptor: int, budget: MediaBudget) -> bytes:
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is no file")
        budget.add_encoded(status.st_size)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(status.st_size)
    finally:
        os.close(descriptor)
