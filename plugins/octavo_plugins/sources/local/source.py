"""A path is a model's name."""

from __future__ import annotations

from pathlib import Path

from octavo.errors import ConfigError, ModelError


class LocalSource:
    """Finds a model whose name is the path of a folder, absolute, relative or with ``~``."""

    uses_network = False

    def find(self, name: str, *, revision: str | None) -> Path | None:
        """Return the folder's absolute path; None when there is no such path."""
        try:
            path = Path(name).expanduser().resolve()
            is_folder, exists = path.is_dir(), path.exists()
        except (OSError, RuntimeError, ValueError):  # too long, a NUL byte, no such user
            return None
        if exists and not is_folder:
            raise ModelError(f"model={name!r} is a file; give the folder that holds config.json")
        if is_folder and revision is not None:
            raise ConfigError(
                f"revision={revision!r} has no meaning for the folder {path}; leave it out"
            )
        return path if is_folder else None
