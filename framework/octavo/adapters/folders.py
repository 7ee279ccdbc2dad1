"""Whether a folder that somebody named may be read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def folder_below(roots: Sequence[Path] | None, name: str) -> Path | None:
    """Return the folder with links resolved; None where there is none that may be read.

    A relative name is looked for in each of ``roots``. The folder, and whatever a link in it points
    to, must lie below one of them; None stands for the whole machine, and names as in the shell.
    """
    try:
        path = Path(name).expanduser()
        places = [path] if roots is None else [root / path for root in roots]
    except (RuntimeError, ValueError):  # no such user
        return None
    return next((found for place in places if (found := _checked(place, roots))), None)


def _checked(path: Path, roots: Sequence[Path] | None) -> Path | None:
    try:
        path = path.resolve(strict=True)
        if not path.is_dir():
            return None
        if roots is not None:
            resolved = [root.resolve() for root in roots]
            for each in (path, *(file.resolve(strict=True) for file in path.iterdir())):
                if not any(each.is_relative_to(root) for root in resolved):
                    return None
    except (OSError, RuntimeError, ValueError):  # a loop, too long, a NUL byte
        return None
    return path
