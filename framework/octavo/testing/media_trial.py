"""Prompts with media for the conformance kit, and what each gives when it runs alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import cycle, product
from pathlib import Path
from typing import Any, Final

import numpy as np

from octavo.config import EngineConfig
from octavo.inputs.media import MediaInputs, PlacedMedia, read_settings
from octavo.model_folder import open_model
from octavo.testing.comparison import Comparison
from octavo.testing.engine_run import (
    EnginePrompt,
    EngineRun,
    ItemPrompt,
    SampledSequence,
    tokens_of,
)
from octavo.testing.modes import engine_config
from octavo.testing.variants import MediaExample, Variant
from octavo_registry import PluginHost
from octavo_registry.modalities import MediaSettings

NUM_SHAPES: Final = 4
MEDIA_TOKENS: Final = 6
"""Greedily sampled behind each prompt with media."""
MEDIA_OPTIONS: Final[Mapping[str, Any]] = {
    "max_model_len": None,
    "max_num_seqs": 16,
    "kv_cache_memory_gib": 0.05,
}


class NoTokenizer:
    """Gives any text ids, one for each letter, for models whose items stand with text."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of its letters."""
        return [self._ids[ord(letter) % len(self._ids)] for letter in text]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A prompt with media, in the form of a user of ``LLM``."""

    name: str
    token_ids: list[int]
    media: Mapping[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MediaTrial:
    """A folder of a model that takes media, and the host whose engine runs it."""

    folder: Path
    host: PluginHost
    architecture: str
    examples: Mapping[str, MediaExample]
    options: Mapping[str, Any]
    text_ids: tuple[int, ...]
    """Tokens that stand for nothing but themselves."""
    one_item: bool
    """As in a ``Variant``."""

    @cached_property
    def settings(self) -> MediaSettings:
        """What the model's functions for media go by."""
        folder = open_model(self.config().model, self.host)
        tokenizer: Any = NoTokenizer(self.text_ids)
        modalities = tuple(self.examples)
        return read_settings(folder.path, folder.config, tokenizer, modalities=modalities)

    def config(self, **options: Any) -> EngineConfig:
        """What an engine is started with."""
        return engine_config(self.folder, **{**MEDIA_OPTIONS, **self.options, **options})

    @contextmanager
    def inputs(self) -> Iterator[MediaInputs]:
        """A new way into the engine, with a cache of its own."""
        config = self.config().media
        inputs = MediaInputs(self.architecture, self.settings, self.host, config)
        try:
            yield inputs
        finally:
            inputs.reader.close()

    def place(self, asked: Sequence[Asked]) -> list[PlacedMedia]:
        """The prompts as the engine takes them."""
        with self.inputs() as inputs:
            return [inputs.place(each.token_ids, inputs.split(each.media, None)) for each in asked]

    def engine(self, **options: Any) -> EngineRun:
        """A new engine."""
        return EngineRun(self.config(**options), self.host)

    @cached_property
    def prompts(self) -> list[Asked]:
        """Items of all modalities alone, twice, changed, changed places, and no item at all."""
        text = self._text
        longer_text = text(17)
        found = [
            Asked(name="text alone", token_ids=text(5)),
            Asked(name="a longer text alone", token_ids=longer_text),
        ]
        for number, (modality, example) in enumerate(self.examples.items()):
            before, between, after = text(3 + number), text(2), text(4)
            items = [example.make(shape, 0) for shape in range(NUM_SHAPES)]
            same_shape = example.make(0, 1)
            one = [*before, *example.tokens, *after]
            two = [*example.tokens, *between, *example.tokens, *after]
            for name, ids, media in (
                (f"one {modality}", one, [items[0]]),
                (f"another {modality}", one, [same_shape]),
                (f"two of {modality}", two, [items[0], same_shape]),
                (f"two of {modality} in the other order", two, [same_shape, items[0]]),
                (f"two other of {modality}", two, items[1:3]),
                (f"a last {modality}", [*longer_text, *example.tokens], [items[3]]),
            ):
                found.append(Asked(name=name, token_ids=ids, media={modality: media}))
        if len(self.examples) > 1:
            ids = [id for each in self.examples.values() for id in (*each.tokens, *text(2))]
            each_one = {modality: [each.make(1, 2)] for modality, each in self.examples.items()}
            found.append(Asked(name="one of each modality", token_ids=ids, media=each_one))
        if self.one_item:
            return [each for each in found if sum(map(len, each.media.values())) == 1]
        return found

    @cached_property
    def _generator(self) -> np.random.Generator:
        return np.random.default_rng(0)

    def _text(self, length: int) -> list[int]:
        ids: list[int] = self._generator.choice(self.text_ids, length).tolist()
        return ids


def make_media_trial(
    host: PluginHost, architecture: str, variant: Variant, folder: Path
) -> MediaTrial:
    """A trial of the model that lies in the folder."""
    options = {"model_impl": architecture}
    vocab_size = open_model(engine_config(folder, **options).model, host).vocab_size
    trial = MediaTrial(
        folder=folder,
        host=host,
        architecture=architecture,
        examples=variant.media,
        options=options,
        text_ids=tuple(range(3, vocab_size)),
        one_item=variant.one_item,
    )
    special = {
        *(token for example in variant.media.values() for token in example.tokens),
        *trial.settings.token_ids.values(),
        *_named_tokens(trial.settings.config),
    }
    return replace(trial, text_ids=tuple(id for id in trial.text_ids if id not in special))


def with_items(trial: MediaTrial, prompts: Sequence[EnginePrompt]) -> tuple[ItemPrompt, ...]:
    """Each prompt with one item; some that begin alike have the same, others have others."""
    items = [
        (modality, example.tokens, example.make(shape, seed))
        for modality, example in trial.examples.items()
        for shape, seed in product(range(NUM_SHAPES), range(2))
    ]
    found = []
    for prompt, (modality, tokens, item) in zip(prompts, cycle(items), strict=False):
        ids = [*tokens, *tokens_of(prompt)]
        (placed,) = trial.place([Asked(name=modality, token_ids=ids, media={modality: [item]})])
        found.append(
            ItemPrompt(
                token_ids=placed.token_ids,
                inputs=placed.inputs,
                positions=placed.positions,
                item=item,
            )
        )
    return tuple(found)


def _named_tokens(config: Mapping[str, Any]) -> set[int]:
    """Tokens that config.json has a name for."""
    return {
        value
        for name, value in config.items()
        if name.endswith(("_token_id", "_token_index")) and isinstance(value, int)
    }


def compare_runs(
    asked: Sequence[Asked], found: Sequence[SampledSequence], expected: Sequence[SampledSequence]
) -> Comparison:
    """Compare two runs of the same prompts, token by token as far as they choose the same."""
    comparison = Comparison()
    for each, run, alone in zip(asked, found, expected, strict=True):
        same = 1
        while same < len(alone.tokens) and run.tokens[:same] == alone.tokens[:same]:
            same += 1
        comparison.add(
            each.name, run.logprobs_NV[:same], alone.logprobs_NV[:same], run.tokens[:same]
        )
    return comparison
