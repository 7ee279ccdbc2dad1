"""``org/name`` as the Hugging Face Hub, or a mirror of it, has it."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from octavo_plugins.sources.hub.environment import huggingface_settings, uses_modelscope
from octavo_plugins.sources.hub.files import Listing, RemoteFile
from octavo_plugins.sources.hub.hub import HubSettings, find_at_hub, is_repository_name


class HuggingFaceSource:
    """Fetches models into the cache that all libraries of the Hub share."""

    uses_network = True

    @cached_property
    def settings(self) -> HubSettings:
        """Read when they are needed: what is wrong with them does not concern other sources."""
        return huggingface_settings()

    def find(self, name: str, *, revision: str | None) -> Path | None:
        """Return the snapshot's folder; None for a name that no repository can have."""
        return self._find(name, revision, weights=True)

    def find_settings(self, name: str, *, revision: str | None) -> Path | None:
        """See ``FindsSettings``."""
        return self._find(name, revision, weights=False)

    def _find(self, name: str, revision: str | None, *, weights: bool) -> Path | None:
        if uses_modelscope() or not is_repository_name(name):
            return None
        return find_at_hub(self, name, revision, weights=weights)

    def listing_url(self, name: str, revision: str) -> str:
        """One request gives the commit, and each file's size and hash."""
        api = f"{self.settings.endpoint}/api/models/{name}"
        return f"{api}/revision/{quote(revision, safe='')}?blobs=true"

    def read_listing(self, answer: Any, name: str, revision: str) -> Listing:
        """See ``Hub``; a file that is no LFS file is named by git's hash."""
        commit = str(answer["sha"])
        files = []
        for entry in answer["siblings"]:
            path, lfs = str(entry["rfilename"]), entry.get("lfs") or {}
            files.append(
                RemoteFile(
                    path=path,
                    url=f"{self.settings.endpoint}/{name}/resolve/{commit}/{quote(path)}",
                    num_bytes=int(lfs.get("size", entry["size"])),
                    digest=str(lfs.get("sha256", entry["blobId"])),
                    is_git_blob=not lfs,
                )
            )
        return Listing(commit=commit, files=tuple(files))
