"""``org/name`` as ModelScope has it."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from octavo_plugins.sources.hub.environment import modelscope_settings, uses_modelscope
from octavo_plugins.sources.hub.files import Listing, RemoteFile
from octavo_plugins.sources.hub.hub import HubSettings, find_at_hub, is_repository_name


class ModelScopeSource:
    """Fetches models into a cache of its own, laid out as that of the Hugging Face Hub."""

    uses_network = True

    @cached_property
    def settings(self) -> HubSettings:
        """Read when they are needed: what is wrong with them does not concern other sources."""
        return modelscope_settings()

    def find(self, name: str, *, revision: str | None) -> Path | None:
        """Return the snapshot's folder; None unless OCTAVO_USE_MODELSCOPE asks for this source."""
        return self._find(name, revision, weights=True)

    def find_settings(self, name: str, *, revision: str | None) -> Path | None:
        """See ``FindsSettings``."""
        return self._find(name, revision, weights=False)

    def _find(self, name: str, revision: str | None, *, weights: bool) -> Path | None:
        if not uses_modelscope() or not is_repository_name(name):
            return None
        return find_at_hub(self, name, revision, weights=weights)

    def listing_url(self, name: str, revision: str) -> str:
        """One request gives each file's size and hash."""
        return f"{self._repository(name)}/files?{_at(revision)}&Recursive=true"

    def read_listing(self, answer: Any, name: str, revision: str) -> Listing:
        """The API names no commit: the snapshot is named by what is in it."""
        url = f"{self._repository(name)}?{_at(revision)}"
        files = tuple(
            RemoteFile(
                path=str(entry["Path"]),
                url=f"{url}&FilePath={quote(entry['Path'], safe='')}",
                num_bytes=int(entry["Size"]),
                digest=str(entry["Sha256"]),
            )
            for entry in answer["Data"]["Files"]
            if entry["Type"] == "blob"
        )
        content = "".join(sorted(f"{file.path}\0{file.digest}\n" for file in files))
        commit = hashlib.sha256(content.encode()).hexdigest()[:40]
        return Listing(commit=commit, files=files)

    def _repository(self, name: str) -> str:
        return f"{self.settings.endpoint}/api/v1/models/{name}/repo"


def _at(revision: str) -> str:
    return f"Revision={quote(revision, safe='')}"
