"""A model by its content: for keys of what outlives an engine, or is shared by several."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from octavo.config.engine import ModelConfig
from octavo.errors import ModelError
from octavo.model_folder import ModelFolder
from octavo.model_folder.header import TensorEntry
from octavo.version import __version__
from octavo.weights.checkpoint import open_checkpoint
from octavo_registry import PluginHost

NUM_THREADS: Final = 8
PIECE_BYTES: Final = 8 << 20


def content_identity(folder: ModelFolder, host: PluginHost, config: ModelConfig) -> str:
    """SHA-256 of all that makes a model's keys and values, wherever its files lie.

    These are the settings, the tensors (not how they are spread over files), the releases of the
    code that runs them, and the folder's own code where it may run. Files of weights are read by
    threads, from the page cache where a worker loads them too, and are no part of it where weights
    are made up.
    """
    plugin = host.models.info(folder.implementation).plugin
    releases = [record.version for record in host.plugins if record.name == plugin]
    settings: dict[str, object] = {
        "config": dict(folder.config),
        "context": folder.max_model_len,
        "model": [folder.implementation, folder.dtype],
        "quantization": [folder.quantization, dict(folder.quantization_config)],
        "releases": [__version__, plugin, *releases],
    }
    if config.trust_remote_code:
        settings["code"] = [
            (str(file.relative_to(folder.path)), hashlib.sha256(file.read_bytes()).hexdigest())
            for file in sorted(folder.path.rglob("*.py"))
        ]
    folders = [folder.path, *(path for path, _ in folder.parts)]
    if config.load_format == "dummy":
        settings["seed"] = config.seed
        folders = []
    tensors = [_tensors(each) for each in folders]
    text = json.dumps([settings, tensors], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _tensors(folder: Path) -> list[tuple[str, str, tuple[int, ...], str]]:
    """Name, dtype, shape and digest of each tensor that is loaded from a folder, by name."""
    placed = []
    for path, entries in open_checkpoint(folder).files.items():
        # What the header says ends where the file does.
        start = path.stat().st_size - (entries[-1].end if entries else 0)
        placed += [(path, start, entry) for entry in entries]
    # The longest first: else one thread would read the last of them while the others wait.
    placed.sort(key=lambda each: each[2].begin - each[2].end)
    with ThreadPoolExecutor(NUM_THREADS, "octavo-identity") as threads:
        digests = threads.map(lambda each: _digest(*each), placed)
        return sorted(
            (entry.name, entry.dtype, entry.shape, digest)
            for (*_, entry), digest in zip(placed, digests, strict=True)
        )


def _digest(path: Path, start: int, entry: TensorEntry) -> str:
    digest = hashlib.sha256()
    left = entry.end - entry.begin
    with path.open("rb", buffering=0) as file:
        file.seek(start + entry.begin)
        while left and (piece := file.read(min(left, PIECE_BYTES))):
            digest.update(piece)
            left -= len(piece)
    if left:
        raise ModelError(f"{path} was cut while it was read")
    return digest.hexdigest()
