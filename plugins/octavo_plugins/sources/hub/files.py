"""Which of a repository's files a model needs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.errors import ModelError
from octavo.weights.checkpoint import INDEX_FILE, SINGLE_FILE

SETTING_SUFFIXES = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".py")
"""Settings, tokenizers and their code; what is not needed of these is small."""
TEMPLATE_FOLDER = "additional_chat_templates/"
_MODULE = re.compile(r"\d+_\w+/[^/]+\.json")
"""Settings of sentence-transformers' modules, such as 1_Pooling/config.json."""
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_HEX = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """One file as a hub lists it."""

    path: str
    url: str
    num_bytes: int
    digest: str
    """In hex; also the file's name in the cache."""
    is_git_blob: bool = False
    """Whether the digest is git's SHA-1 of a blob; else it is the SHA-256 of the bytes."""

    def __post_init__(self) -> None:
        _check_hex(self.digest)

    def matches(self, path: Path) -> bool:
        """Whether the file there has these bytes."""
        digest: Any = hashlib.sha256()
        if self.is_git_blob:
            digest = hashlib.sha1(f"blob {self.num_bytes}\0".encode(), usedforsecurity=False)
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        return bool(digest.hexdigest() == self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A repository at one commit."""

    commit: str
    files: tuple[RemoteFile, ...]

    def __post_init__(self) -> None:
        _check_hex(self.commit)

    def settings(self) -> list[RemoteFile]:
        """Everything but weights; nothing here is large."""
        return [file for file in self.files if _is_setting(file.path)]

    def weights(self, index: Path | None) -> list[RemoteFile]:
        """The safetensors that are loaded, once each; ``index`` is the fetched index, if any.

        Repositories often hold the same weights again in another layout or format.
        """
        files = {file.path: file for file in self.files if "/" not in file.path}
        if SINGLE_FILE in files:
            return [files[SINGLE_FILE]]
        if index is None:
            return [file for path, file in files.items() if path.endswith(".safetensors")]
        try:
            names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
            return [files[name] for name in names]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelError(
                f"{INDEX_FILE} of the repository names files that it does not hold ({error}); "
                "give another revision"
            ) from error

    def pickles(self) -> list[str]:
        """Names of weights in a format that is never opened."""
        return [file.path for file in self.files if file.path.endswith(PICKLE_SUFFIXES)]


def _check_hex(name: str) -> None:
    """It becomes a path: a server must not be able to name another one."""
    if not _HEX.fullmatch(name):
        raise ValueError(f"{name!r:.80} is no hash")


def _is_setting(path: str) -> bool:
    name = path.removeprefix(TEMPLATE_FOLDER)
    is_at_root = "/" not in name and name.endswith(SETTING_SUFFIXES)
    return is_at_root or _MODULE.fullmatch(path) is not None


def total_bytes(files: Iterable[RemoteFile]) -> int:
    """Bytes of all the files."""
    return sum(file.num_bytes for file in files)
