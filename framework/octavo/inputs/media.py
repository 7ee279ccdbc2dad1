"""Media of prompts on their way to the engine: items to tensors, places to placeholders."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.config.media import MediaConfig
from octavo.errors import PluginError, PromptError, PromptTooLongError
from octavo.inputs.processor_kwargs import asked_of_all, read_kwargs, with_kwargs
from octavo.inputs.tensor_cache import TensorCache, Tensors, write_tensor
from octavo.messages import MediaInput
from octavo.multimodal.encoded import SUFFIX, EncodedItem
from octavo.multimodal.errors import BadMediaError, MediaTooLargeError, about
from octavo.multimodal.given import GivenMedia
from octavo_registry import PluginHost
from octavo_registry.modalities import MediaItem, MediaPrompt, MediaSettings, Placeholder

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.multimodal.reader import MediaReader
    from octavo_registry.tokenizer import Tokenizer


EVERY_FILE, VIDEO_FILE = "preprocessor_config.json", "video_preprocessor_config.json"
MODALITIES = ("image", "video", "audio")
SECTIONS = {"image_processor": "image", "video_processor": "video", "feature_extractor": "audio"}
"""The modality of each section of processor_config.json."""
SAMPLING = ("num_frames", "fps", "min_frames", "max_frames")
"""Settings of how a video's frames are chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedMedia:
    """A prompt as the engine takes it."""

    token_ids: list[int]
    inputs: tuple[MediaInput, ...] = ()
    positions: bytes = b""

    def check_positions(self, max_model_len: int) -> int:
        """The position behind the prompt, or its length if more; all must be in the context."""
        num_tokens = len(self.token_ids)
        if not self.positions:
            return num_tokens
        positions_AP = np.frombuffer(self.positions, np.int32).reshape(-1, num_tokens)
        least, most = int(positions_AP.min()), int(positions_AP.max())
        behind = max(num_tokens, int(positions_AP[:, -1].max()) + 1)
        if least < 0 or most >= max_model_len or behind >= max_model_len:
            raise PromptTooLongError(
                f"the media place tokens at positions {least} to {most}, and the context has "
                f"0 to {max_model_len - 1}, of which the answer needs one; give a shorter video"
            )
        return behind


class MediaInputs:
    """Puts the media of one model's prompts into its terms; used from any thread."""

    def __init__(
        self,
        architecture: str,
        settings: MediaSettings,
        host: PluginHost,
        config: MediaConfig,
    ) -> None:
        self._architecture = architecture
        self.marks = _marks(architecture, settings, host)
        """Ids of texts that are no tokens."""
        self._folder = replace(settings, token_ids={**settings.token_ids, **self.marks})
        self._kwargs = host.multimodal.kwargs(architecture, settings.config)
        self._asked = read_kwargs(asked_of_all(config), self._kwargs)
        self._settings = with_kwargs(self._folder, self._asked)
        self._host = host
        self._config = config
        self._cache = TensorCache(int(config.mm_processor_cache_gb * 2**30))
        known = host.multimodal.info(architecture) if architecture in host.multimodal else None
        self._takes_rows = bool(known and known.metadata["rows"])

    @property
    def special_tokens(self) -> bool:
        """Whether the tokenizer puts any around a prompt of text."""
        inputs = self._host.inputs
        known = inputs.info(self._architecture) if self._architecture in inputs else None
        return known is None or bool(known.metadata["special_tokens"])

    @cached_property
    def reader(self) -> MediaReader:
        """Made for a model that takes media: it has threads."""
        from octavo.multimodal.reader import MediaReader

        return MediaReader(self._host, self._config)

    def split(self, data: Mapping[str, Any], uuids: Mapping[str, Any] | None) -> list[GivenMedia]:
        """Return the items of a ``multi_modal_data``; nothing is read yet."""
        return self.reader.split(data, uuids, takes_rows=self._takes_rows)

    def place(
        self,
        token_ids: Sequence[int],
        given: Sequence[GivenMedia],
        *,
        salt: str = "",
        kwargs: Mapping[str, Any] | None = None,
        from_text: bool = False,
    ) -> PlacedMedia:
        """Read the items, and put placeholders into the prompt's tokens; blocks.

        Names of items are the ``salt``'s own; ``kwargs`` are the request's ``mm_processor_kwargs``.
        A place for an item that is not given is an error; but without any items, of tokens that
        are not ``from_text``, each is what it is.
        """
        settings = self._settings
        if kwargs is not None:
            asked = read_kwargs(kwargs, self._kwargs, self._asked)
            settings = with_kwargs(self._folder, asked)
        if not given:
            if from_text:
                self._process(token_ids, [], settings)
            return PlacedMedia(token_ids=list(token_ids))
        self._check_takes(given)
        modalities = {item.modality for item in given}
        options = {
            modality: self._host.multimodal.decode_options(
                modality, architecture=self._architecture, settings=settings
            )
            for modality in modalities
        }
        known: dict[str, Tensors] = {}  # held here: the cache may drop it before it is placed

        def is_known(content_hash: str) -> bool:
            kept = self._cache.get(_keyed(content_hash, kwargs))
            if kept is not None:
                known[_keyed(content_hash, kwargs)] = kept
            return kept is not None

        media = [
            replace(item, content_hash=_keyed(item.content_hash, kwargs))
            for item in self.reader.read_blocking(given, options, is_known, salt=salt)
        ]
        found = [
            known.get(item.content_hash) or self._tensors(each.place, item, settings)
            for each, item in zip(given, media, strict=True)
        ]
        items = [
            replace(item, tensors=tensors) for item, (tensors, _) in zip(media, found, strict=True)
        ]
        prompt = self._process(token_ids, items, settings)
        spans: list[list[tuple[int, int]]] = [[] for _ in media]
        for each in prompt.placeholders:
            spans[each.item].append((each.start, each.length))
        if not all(spans) and not (prompt.cross_rows and len(media) == 1):
            raise PluginError(f"the input processor of {self._architecture} left out an item")
        inputs = [
            MediaInput(
                content_hash=item.content_hash,
                spans=tuple(item_spans),
                tensors=data,
                cross_rows=prompt.cross_rows,
            )
            for item, item_spans, (_, data) in zip(items, spans, found, strict=True)
        ]
        for item, media_input in zip(given, inputs, strict=True):
            self._check_room(item, media_input)
        positions = b""
        if prompt.positions_AP is not None:
            positions = np.ascontiguousarray(prompt.positions_AP, np.int32).tobytes()
        return PlacedMedia(
            token_ids=list(prompt.token_ids),
            inputs=tuple(sorted(inputs, key=lambda each: each.start)),
            positions=positions,
        )

    def _process(
        self, token_ids: Sequence[int], items: Sequence[MediaItem], settings: MediaSettings
    ) -> MediaPrompt:
        prompt = MediaPrompt(token_ids=token_ids, media=items)
        return self._host.inputs.process_input(self._architecture, prompt, settings)

    def _check_takes(self, given: Sequence[GivenMedia]) -> None:
        for item in given:
            if item.is_encoded and not self._takes_rows:
                raise BadMediaError(
                    f"{item.place}: {self._architecture} takes no rows that are encoded already; "
                    f"give the {item.modality} itself"
                )

    def _tensors(self, place: str, item: MediaItem, settings: MediaSettings) -> Tensors:
        made = self._cache.get(item.content_hash)
        if made is None:
            modality, registry, value = item.modality, self._host.multimodal, item.value
            how: dict[str, Any] = {"architecture": self._architecture, "settings": settings}
            with about(place):
                tensors = (
                    registry.map_rows(modality, value.tensors, **how)
                    if isinstance(value, EncodedItem)
                    else registry.map_input(modality, item, **how)
                )
            made = tensors, {name: write_tensor(tensor) for name, tensor in tensors.items()}
            self._cache.put(item.content_hash, made)
        return made

    def _check_room(self, given: GivenMedia, media: MediaInput) -> None:
        room = self._config.cached_rows(across=media.cross_rows > 0)
        if media.num_rows > room:
            raise MediaTooLargeError(
                f"{given.place}: it takes {media.num_rows} tokens; media_cache_tokens={room} "
                f"must be {media.num_rows} at least"
            )


def _marks(architecture: str, settings: MediaSettings, host: PluginHost) -> dict[str, int]:
    if architecture not in host.inputs:
        return {}
    texts = host.inputs.info(architecture).metadata["marks"]
    sizes = {**settings.config, **(settings.config.get("text_config") or {})}
    first = max(sizes.get("vocab_size", 0), 1 + max(settings.token_ids.values(), default=0))
    unknown = [text for text in texts if text not in settings.token_ids]
    return {text: first + number for number, text in enumerate(unknown)}


def _keyed(content_hash: str, kwargs: Mapping[str, Any] | None) -> str:
    """The key of an item's tensors, which are others where a request says how they are made."""
    if not kwargs:
        return content_hash
    made_with = json.dumps(kwargs, sort_keys=True)
    return sha256(f"{content_hash} {made_with}".encode()).hexdigest()


def read_settings(
    folder: Path,
    config: Mapping[str, Any],
    tokenizer: Tokenizer | None = None,
    *,
    modalities: Collection[str] = (),
) -> MediaSettings:
    """What a folder says of the model's processors, in old files or new.

    ``modalities`` are the model's, which may be a plugin's own.
    """
    processors = {name: _entries(folder / EVERY_FILE) for name in (*MODALITIES, *modalities)}
    processors["video"].update(_entries(folder / VIDEO_FILE))
    sections = _entries(folder / "processor_config.json")
    for name, modality in SECTIONS.items():
        found = sections.get(name)
        processors[modality].update(found if isinstance(found, dict) else {})
    return MediaSettings(
        config=config,
        processors=processors,
        token_ids=_added_tokens(folder),
        encode_text=partial(tokenizer.encode, add_special_tokens=False) if tokenizer else None,
    )


def _added_tokens(folder: Path) -> dict[str, int]:
    """Ids of added tokens, from files old and new; those of the fast tokenizer say most."""
    found: dict[str, int] = {}
    decoder = _entries(folder / "tokenizer_config.json").get("added_tokens_decoder") or {}
    found.update({entry["content"]: int(number) for number, entry in decoder.items()})
    for entry in _entries(folder / "tokenizer.json").get("added_tokens") or []:
        found[entry["content"]] = entry["id"]
    return found


def _entries(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found = json.loads(path.read_bytes())
    return found if isinstance(found, dict) else {}


def expand_placeholders(
    prompt: MediaPrompt, tokens: Mapping[str, int], counts: Sequence[int]
) -> MediaPrompt:
    """Replace each token that stands for an item by as many as the item has rows.

    ``tokens`` are by modality, ``counts`` by item; items of one modality come in their order.
    """
    contents = [
        [tokens[item.modality]] * count for item, count in zip(prompt.media, counts, strict=True)
    ]
    return expand_items(prompt, tokens, contents)


def expand_items(
    prompt: MediaPrompt,
    tokens: Mapping[str, int],
    contents: Sequence[Sequence[int]],
    *,
    place: int | None = None,
) -> MediaPrompt:
    """Replace each token that stands for an item by the item's contents.

    Spans of ``place`` in it, or of that very token, are placeholders; other tokens are text.
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
        if token not in by_token:
            expanded.append(token)
            continue
        item = waiting[by_token[token]].pop(0)
        for each, run in groupby(contents[item]):
            length = len(list(run))
            if each == (token if place is None else place):
                start = len(expanded)
                placeholders.append(Placeholder(item=item, start=start, length=length))
            expanded += [each] * length
    return MediaPrompt(token_ids=expanded, media=prompt.media, placeholders=placeholders)


def frames_asked(modality: str, settings: MediaSettings, **default: float) -> dict[str, float]:
    """The options of "video": which frames the model's folder, the user or a request asks for.

    ``default`` is for a folder that says neither how many, nor how many a second.
    """
    if modality != "video":
        return {}
    asked = {name: settings.entry(modality, name, None) for name in SAMPLING}
    given = {name: value for name, value in asked.items() if value is not None}
    if "num_frames" in given:
        return {"num_frames": given["num_frames"]}
    if "fps" in given:
        default.pop("num_frames", None)
    return {**default, **given}


def checked_rows(
    modality: str,
    tensors: Mapping[str, Tensor],
    *,
    num_rows: int,
    row_size: int,
    beside: Collection[str] = (),
) -> Tensor:
    """The rows of an item that came encoded, of the model's own number and size.

    ``beside`` are names of other tensors that it may have.
    """
    name = f"{modality}{SUFFIX}"
    for other in tensors:
        if other not in (name, *beside):
            known = ", ".join((name, *beside))
            raise BadMediaError(f"an encoded {modality} has no tensor {other!r}; known: {known}")
    rows = tensors[name]
    if tuple(rows.shape) != (num_rows, row_size):
        raise BadMediaError(
            f"{name} has the shape {list(rows.shape)}; this {modality} has {num_rows} rows of "
            f"{row_size}"
        )
    return rows


def pixel_scale(
    settings: MediaSettings, modality: str, mean: Sequence[float], std: Sequence[float]
) -> Tensor:
    """Mean and deviation of the three colours, [2, 3, 1, 1], for ``normalised`` on the device.

    Those given are for a folder that names none.
    """
    import torch

    both = settings.entry(modality, "image_mean", mean), settings.entry(modality, "image_std", std)
    return torch.tensor(both, dtype=torch.float32).view(2, 3, 1, 1)
