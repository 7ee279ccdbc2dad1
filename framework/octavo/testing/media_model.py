"""The conformance of a model's media: as many rows as places, of the content alone, in every way.

Axis suffixes: M rows, W row size, N tokens of a continuation, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from octavo.errors import BadRequestError
from octavo.execution.media_encoder import read_tensor
from octavo.inputs.media import PlacedMedia
from octavo.model_folder import open_model
from octavo.testing.comparison import MAX_DIFFERENCE, Comparison
from octavo.testing.engine_run import SampledSequence
from octavo.testing.faults import Fault
from octavo.testing.media_trial import (
    MEDIA_TOKENS,
    NUM_SHAPES,
    Asked,
    MediaTrial,
    compare_runs,
)
from octavo.testing.modes import BLOCK_TOKENS, NotExercised
from octavo.testing.report import Check
from octavo.weights.load import load_model
from octavo_registry import ModelCapabilities
from octavo_registry.faults import FAILURES, one_line
from octavo_registry.model import EncodesMedia

NUM_SEEDS: Final = 2
"""Items of each shape that are encoded."""
CROWDED_TOKENS: Final = 3 * MEDIA_TOKENS
"""Drawn where blocks are few, so that requests grow until there are none; the first count."""
SAME: Final = 1e-4
"""Largest difference of equal rows, in units of their spread."""


class WrongMedia(Exception):
    """What a check has found."""


class MediaChecks:
    """Runs all checks of one trial; the model is loaded once."""

    def __init__(self, title: str, trial: MediaTrial, capabilities: ModelCapabilities) -> None:
        self._title = title
        self._trial = trial
        self._capabilities = capabilities

    def run(self) -> Iterator[Check]:
        """Where rows are wrong, what comes after would mean nothing."""
        first = [
            self._check("an item has as many rows as placeholders", self._counts),
            self._check("an item's rows are those of its content", self._contents),
            self._check("items together have the rows that each has alone", self._together),
            self._check("an item that is kept is placed without its value", self._kept),
            self._check("text with a place for an item has one", self._without_items),
        ]
        yield from first
        if not all(check.passed for check in first):
            return
        yield self._check("other content and another order decide what follows", self._decides)
        for name, way in self._ways().items():
            check = partial(self._equal_alone, way)
            yield self._check(f"with media and text beside them the same {name}", check)
        faults = FAULTS_ACROSS if self._rows_across else FAULTS
        for mistake, change in faults.items():
            if mistake == ONE_FOR_ALL or self._most_rows > 1:
                yield self._check(f"the kit notices {mistake}", partial(self._noticed, change))

    def _check(self, name: str, look: Callable[[], str]) -> Check:
        """``look`` returns what it found, and raises for what is wrong."""
        full = f"{self._title}: {name}"
        try:
            return Check(name=full, passed=True, detail=look())
        except WrongMedia as error:
            return Check(name=full, passed=False, detail=str(error))
        except FAILURES as error:
            return Check(name=full, passed=False, detail=one_line(error))

    @cached_property
    def _model(self) -> Any:
        trial, options = self._trial, self._trial.config().model
        folder = open_model(options, trial.host)
        return load_model(folder, trial.host, config=options, device=torch.device("cpu"))

    @cached_property
    def _items(self) -> dict[tuple[str, int, int], PlacedMedia]:
        """Prompts of one item, by modality, shape and seed."""
        found = {}
        for modality, example in self._trial.examples.items():
            for shape in range(NUM_SHAPES):
                for seed in range(NUM_SEEDS):
                    media = {modality: [example.make(shape, seed)]}
                    asked = Asked(name=modality, token_ids=list(example.tokens), media=media)
                    (found[modality, shape, seed],) = self._trial.place([asked])
        return found

    def _encode(self, prompts: Sequence[PlacedMedia]) -> list[Tensor]:
        tensors = [
            {name: read_tensor(data) for name, data in item.tensors.items()}
            for prompt in prompts
            for item in prompt.inputs
        ]
        with torch.inference_mode():
            return list(self._model.encode(tensors))

    @cached_property
    def _rows(self) -> dict[tuple[str, int, int], Tensor]:
        return {key: self._encode([prompt])[0].float() for key, prompt in self._items.items()}

    def _counts(self) -> str:
        if not isinstance(self._model, EncodesMedia):
            raise WrongMedia("the model lacks encode, encode_bytes or media_row_size")
        for (modality, shape, _), prompt in self._items.items():
            (item,) = prompt.inputs
            rows_MW = self._rows_of(prompt)
            expected = (item.num_rows, self._model.media_row_size)
            if tuple(rows_MW.shape) != expected:
                raise WrongMedia(
                    f"{modality} of shape {shape} has {item.num_rows} placeholder tokens, and "
                    f"encode gives {list(rows_MW.shape)} instead of {list(expected)}"
                )
            if not bool(rows_MW.isfinite().all()):
                raise WrongMedia(f"{modality} of shape {shape} has rows that are not finite")
            self._check_positions(prompt)
            if self._model.encode_bytes(item.num_rows) <= 0:
                raise WrongMedia("encode_bytes is not above 0, so nothing is set aside for it")
        counts = sorted({prompt.inputs[0].num_rows for prompt in self._items.values()})
        return f"rows: {', '.join(map(str, counts))}"

    def _rows_of(self, prompt: PlacedMedia) -> Tensor:
        (rows_MW,) = self._encode([prompt])
        return rows_MW

    def _check_positions(self, prompt: PlacedMedia) -> None:
        axes = self._capabilities.position_axes
        expected = 4 * axes * len(prompt.token_ids) if axes > 1 else 0
        if len(prompt.positions) not in (0, expected):
            raise WrongMedia(
                f"positions have {len(prompt.positions) // 4} entries for {axes} axes of "
                f"{len(prompt.token_ids)} tokens"
            )

    def _contents(self) -> str:
        for (modality, shape, seed), rows_MW in self._rows.items():
            if _away(self._rows_of(self._items[modality, shape, seed]), rows_MW) > SAME:
                raise WrongMedia(f"{modality} of shape {shape} has other rows the second time")
            other = self._items[modality, shape, 1 - seed]
            mine = self._items[modality, shape, seed]
            if len(other.token_ids) != len(mine.token_ids):
                raise WrongMedia(
                    f"items of {modality} of shape {shape} are of several sizes; the example "
                    "must make them of one"
                )
            if other.inputs[0].content_hash == mine.inputs[0].content_hash:
                raise WrongMedia(f"two items of {modality} have one hash, by its decoder's content")
            if _away(self._rows[modality, shape, 1 - seed], rows_MW) <= SAME:
                raise WrongMedia(f"other {modality} of shape {shape} has the same rows")
        return ""

    def _together(self) -> str:
        for keys in (list(self._items), list(self._items)[::-1]):
            found = self._encode([self._items[key] for key in keys])
            if len(found) != len(keys):
                raise WrongMedia(f"encode gives {len(found)} results for {len(keys)} items")
            for key, rows_MW in zip(keys, found, strict=True):
                alone_MW = self._rows[key]
                if rows_MW.shape != alone_MW.shape or _away(rows_MW.float(), alone_MW) > SAME:
                    raise WrongMedia(
                        f"{key[0]} of shape {key[1]} has other rows among {len(keys)} items, or "
                        "stands at another place"
                    )
        return ""

    def _kept(self) -> str:
        """A name without an item is one that was here before."""
        with self._trial.inputs() as inputs:
            for modality, example in self._trial.examples.items():
                ids, named = list(example.tokens), {modality: ["kept"]}
                given = inputs.split({modality: [example.make(1, 0)]}, named)
                first = inputs.place(ids, given)
                again = inputs.place(ids, inputs.split({modality: [None]}, named))
                if again != first:
                    raise WrongMedia(f"{modality} is placed otherwise when it is kept")
        return ""

    def _without_items(self) -> str:
        trial = self._trial
        with trial.inputs() as inputs:
            for modality, example in trial.examples.items():
                try:
                    inputs.place(example.tokens, [], from_text=True)
                except BadRequestError:
                    continue
                raise WrongMedia(f"a place for {modality} is taken where there is none")
            if not trial.one_item:
                inputs.place(trial.text_ids, [], from_text=True)
        return ""

    @cached_property
    def _placed(self) -> list[PlacedMedia]:
        return self._trial.place(self._trial.prompts)

    @cached_property
    def _alone(self) -> list[SampledSequence]:
        with self._trial.engine(enable_prefix_caching=False) as engine:
            return [
                engine.generate([prompt], max_tokens=MEDIA_TOKENS)[0] for prompt in self._placed
            ]

    def _decides(self) -> str:
        by_name = dict(zip((each.name for each in self._trial.prompts), self._alone, strict=True))
        least = np.inf
        for modality in self._trial.examples:
            pairs = [(f"one {modality}", f"another {modality}")]
            if not self._trial.one_item:
                pairs.append((f"two of {modality}", f"two of {modality} in the other order"))
            for first, second in pairs:
                one_V, other_V = (by_name[name].logprobs_NV[0] for name in (first, second))
                away = float(np.abs(one_V - other_V).max() / one_V.std())
                if away <= 10 * MAX_DIFFERENCE:
                    raise WrongMedia(
                        f"{first!r} and {second!r} give the same logits, within {away:.1e} of "
                        "their spread"
                    )
                least = min(least, away)
        return f"logits differ by {least:.1e} of their spread at least"

    @cached_property
    def _most_rows(self) -> int:
        return max(item.num_rows for prompt in self._placed for item in prompt.inputs)

    @cached_property
    def _rows_across(self) -> int:
        """The most that cross attention reads for a sequence, whatever their order."""
        return max(item.cross_rows for prompt in self._placed for item in prompt.inputs)

    def _ways(self) -> Mapping[str, Mapping[str, Any]]:
        longest = max(len(prompt.token_ids) for prompt in self._placed) + CROWDED_TOKENS
        one: dict[str, Any] = {"max_num_seqs": 1, "kv_cache_memory_gib": None}
        with self._trial.engine(max_model_len=longest, **one) as engine:
            of_one = engine.num_blocks - 1  # block 0 is nobody's
        across = -(-self._rows_across // BLOCK_TOKENS)  # of each, from its beginning
        num_blocks = 1 + len(self._placed) * across + (of_one - across) * 3 // 2
        small = {"media_cache_tokens": self._most_rows, "max_num_batched_tokens": 24}
        return {
            "in a batch, and again with warm caches": {},
            "in chunks of 2 tokens": _chunks_of(2),
            "in chunks of 7 tokens": _chunks_of(7),
            "with room for one item": small,
            "preempted": {"max_model_len": longest, "num_blocks": num_blocks},
        }

    def _equal_alone(self, options: Mapping[str, Any]) -> str:
        return _passed(self._compared(self._trial, options))

    def _compared(self, trial: MediaTrial, options: Mapping[str, Any]) -> Comparison:
        is_crowded = "num_blocks" in options
        num_tokens = CROWDED_TOKENS if is_crowded else MEDIA_TOKENS
        with trial.engine(**options) as engine:
            for _ in range(1 if options else 2):
                found = engine.generate(self._placed, max_tokens=num_tokens)
                comparison = compare_runs(trial.prompts, found, self._alone)
                if not comparison.passed:
                    return comparison
            if is_crowded and not engine.count("num_preemptions"):
                raise NotExercised("nothing was preempted")
        if not options and not any(each.num_cached_tokens for each in found):
            raise NotExercised("no prompt was found in the prefix cache")
        return comparison

    def _noticed(self, change: Callable[[Any], Any]) -> str:
        comparison = self._compared(Fault(model=change).put_into(self._trial), {})
        if comparison.passed:
            raise WrongMedia(f"the comparison still passes: {comparison.as_text()}")
        return f"noticed: {comparison.as_text()}"


def _chunks_of(num_tokens: int) -> Mapping[str, Any]:
    """Nothing is cached, so that every item is cut."""
    steps = {"max_num_batched_tokens": num_tokens, "max_num_seqs": num_tokens}
    return {**steps, "enable_prefix_caching": False}


def _passed(comparison: Comparison) -> str:
    if not comparison.passed:
        raise WrongMedia(comparison.as_text())
    return comparison.as_text()


def _away(found_MW: Tensor, expected_MW: Tensor) -> float:
    """The largest difference of two items' rows, in units of their spread."""
    spread = float(expected_MW.std()) or 1.0
    return float((found_MW - expected_MW).abs().max()) / spread


def _changed_rows(model: Any, change: Callable[[list[Tensor]], list[Tensor]]) -> Any:
    """A model that changes the rows of a step's items by ``change``."""
    encode = model.encode
    model.encode = lambda items: change(list(encode(items)))
    return model


ONE_FOR_ALL: Final = "the first row of an item in all places"
FIRST_ROW: Final = partial(
    _changed_rows, change=lambda rows: [rows[0][:1].expand_as(each) for each in rows]
)
FAULTS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "rows that stand one place further": partial(
        _changed_rows, change=lambda rows: [each.roll(1, 0) for each in rows]
    ),
    ONE_FOR_ALL: FIRST_ROW,
}
FAULTS_ACROSS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "a row that is missing": partial(
        _changed_rows, change=lambda rows: [torch.cat([each[1:], each[-1:]]) for each in rows]
    ),
    ONE_FOR_ALL: FIRST_ROW,
}
"""To cross attention the order of rows means nothing."""
