"""Media of prompts on their way to the engine: placeholders, tensors, and a cache of the latter."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.engine.messages import MediaInput, TensorData
from octavo.errors import PluginError, PromptError
from octavo_registry import PluginHost
from octavo_registry.modalities import MediaItem, MediaPrompt, MediaSettings, Placeholder

if TYPE_CHECKING:
    from torch import Tensor


FILES = {
    "preprocessor_config.json": ("image", "video", "audio"),
    "video_preprocessor_config.json": ("video",),
}
SECTIONS = {"image_processor": "image", "video_processor": "video", "feature_extractor": "audio"}
"""Of processor_config.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedMedia:
    """A prompt as the engine takes it."""

    token_ids: list[int]
    inputs: tuple[MediaInput, ...] = ()
    positions: bytes = b""


class MediaInputs:
    """Puts the media of one model's prompts into its terms."""

    def __init__(self, architecture: str, settings: MediaSettings, host: PluginHost) -> None:
        self._architecture = architecture
        self._settings = settings
        self._host = host

    def place(self, token_ids: Sequence[int], media: Sequence[MediaItem]) -> PlacedMedia:
        """The prompt's tokens with placeholders, and what stands in their place."""
        prompt = self._host.inputs.process_input(
            self._architecture, MediaPrompt(token_ids=token_ids, media=media), self._settings
        )
        runs: list[list[tuple[int, int]]] = [[] for _ in media]
        for each in prompt.placeholders:
            runs[each.item].append((each.start, each.length))
        if not all(runs):
            raise PluginError(f"the input processor of {self._architecture} left out an item")
        inputs = [
            MediaInput(
                content_hash=item.content_hash,
                runs=tuple(item_runs),
                tensors=self._tensors(item),
            )
            for item, item_runs in zip(media, runs, strict=True)
        ]
        positions = b""
        if prompt.positions_AP is not None:
            positions = np.ascontiguousarray(prompt.positions_AP, np.int32).tobytes()
        return PlacedMedia(
            token_ids=list(prompt.token_ids),
            inputs=tuple(sorted(inputs, key=lambda each: each.start)),
            positions=positions,
        )

    def _tensors(self, item: MediaItem) -> dict[str, TensorData]:
        tensors = self._host.multimodal.map_input(
            item.modality, item, architecture=self._architecture, settings=self._settings
        )
        return {name: write_tensor(tensor) for name, tensor in tensors.items()}


def given_items(data: Mapping[str, Any]) -> list[MediaItem]:
    items = []
    for modality, values in data.items():
        for value in values if isinstance(values, (list, tuple)) else [values]:
            image = value.convert("RGB")
            digest = hashlib.sha256(repr((modality, image.size)).encode() + image.tobytes())
            items.append(MediaItem(modality=modality, value=image, content_hash=digest.hexdigest()))
    return items


def read_settings(folder: Path, config: Mapping[str, Any]) -> MediaSettings:
    """What a model's folder says of its processors, in files old and new."""
    processors: dict[str, dict[str, Any]] = {"image": {}, "video": {}, "audio": {}}
    for name, modalities in FILES.items():
        for modality in modalities:
            processors[modality].update(_entries(folder / name))
    sections = _entries(folder / "processor_config.json")
    for name, modality in SECTIONS.items():
        found = sections.get(name)
        processors[modality].update(found if isinstance(found, dict) else {})
    return MediaSettings(config=config, processors=processors)


def _entries(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found = json.loads(path.read_bytes())
    return found if isinstance(found, dict) else {}


def write_tensor(tensor: Tensor) -> TensorData:
    """As bytes, for another process."""
    import torch

    plain = tensor.detach().cpu().contiguous()
    data = plain.view(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return TensorData(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)


def expand_placeholders(
    prompt: MediaPrompt, tokens: Mapping[str, int], counts: Sequence[int]
) -> MediaPrompt:
    """Replace each token that stands for an item by as many as the item has rows.

    ``tokens`` are by modality, ``counts`` by item; items of one modality come in their order.
    """
    ids = list(prompt.token_ids)
    by_token = {token: modality for modality, token in tokens.items()}
    waiting = {
        modality: [place for place, item in enumerate(prompt.media) if item.modality == modality]
        for modality in tokens
    }
    for modality, items in waiting.items():
        found = ids.count(tokens[modality])
        if found != len(items):
            raise PromptError(
                f"the prompt has {found} places for {modality} items, and there are {len(items)}"
            )
    expanded: list[int] = []
    placeholders = []
    for token in ids:
        modality = by_token.get(token)
        if modality is None or not waiting[modality]:
            expanded.append(token)
            continue
        item = waiting[modality].pop(0)
        placeholders.append(Placeholder(item=item, start=len(expanded), length=counts[item]))
        expanded += [token] * counts[item]
    return MediaPrompt(token_ids=expanded, media=prompt.media, placeholders=placeholders)
