"""The cache on disk, in the layout of the Hugging Face Hub's own library, so that both share it.

A model has a folder ``models--org--name`` with ``blobs/DIGEST``, ``snapshots/COMMIT/FILE`` (links
to blobs) and ``refs/REVISION`` (a commit); locks lie in ``.locks`` beside the models.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from octavo_plugins.sources.hub.client import Stopped
from octavo_plugins.sources.hub.files import RemoteFile

LOCK_SECONDS: Final = 0.2
"""Between two looks at a lock that another process has."""
CONFIG_FILES: Final = ("config.json", "adapter_config.json")
"""A model's, and an adapter's: one of them is in every snapshot that was fetched for us."""
_COMMIT = re.compile(r"[0-9a-f]{40}")


class ModelCache:
    """One model's folder in a hub's cache."""

    def __init__(self, root: Path, name: str) -> None:
        folder = "--".join(("models", *name.split("/")))
        self.folder = root / folder
        self._locks = root / ".locks" / folder

    def find(self, revision: str) -> Path | None:
        """The snapshot of a branch, tag or commit, if there is one."""
        commit = revision
        if not _COMMIT.fullmatch(revision):
            try:
                commit = (self.folder / "refs" / revision).read_text().strip()
            except OSError:
                return None
        snapshot = self.snapshot(commit)
        return snapshot if any((snapshot / name).exists() for name in CONFIG_FILES) else None

    def snapshot(self, commit: str) -> Path:
        """Where a commit's files are, whether or not they are there."""
        return self.folder / "snapshots" / commit

    def blob(self, file: RemoteFile) -> Path:
        """Where a file's bytes are."""
        return self.folder / "blobs" / file.digest

    def holds(self, commit: str, file: RemoteFile) -> bool:
        """Whether the snapshot has the file, as a link to a blob or by itself."""
        path = self.snapshot(commit) / file.path
        return path.is_file() and path.stat().st_size == file.num_bytes

    @contextmanager
    def lock(self, file: RemoteFile, stop: threading.Event) -> Iterator[None]:
        """Keep other processes, those of the hub's own library too, from writing the blob.

        Waits for them until ``stop`` is set.
        """
        self._locks.mkdir(parents=True, exist_ok=True)
        self.blob(file).parent.mkdir(parents=True, exist_ok=True)
        with (self._locks / f"{file.digest}.lock").open("w") as lock:
            while not _take_lock(lock):
                if stop.wait(LOCK_SECONDS):
                    raise Stopped
            yield

    def link(self, commit: str, file: RemoteFile) -> None:
        """Put a blob into the snapshot."""
        path = self.snapshot(commit) / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.{os.getpid()}")
        new.unlink(missing_ok=True)
        new.symlink_to(os.path.relpath(self.blob(file), path.parent))
        new.replace(path)

    def name_commit(self, revision: str, commit: str) -> None:
        """Remember which commit a branch or tag is."""
        if revision == commit:
            return
        ref = self.folder / "refs" / revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        new = ref.with_name(f".{ref.name}.{os.getpid()}")
        new.write_text(commit)
        new.replace(ref)


def _take_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
