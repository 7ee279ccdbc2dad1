"""Calls of ``LLM`` that make vectors of texts.

Axis suffixes: N texts, W entries of a vector.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from octavo.errors import ConfigError, ParameterError, error_class
from octavo.frontend.frontend import Frontend
from octavo.frontend.interrupts import InterruptsBetweenSteps
from octavo.frontend.progress import ProgressBar
from octavo.inputs import Prompt, split_prompts
from octavo.inputs.texts import TextInputs, TextSlice
from octavo.messages import StepOutputs
from octavo.model_folder.pooling import PoolingSetup
from octavo.model_folder.tokenizer_failures import failure_of
from octavo.outputs import (
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
)
from octavo.params import PoolingParams
from octavo.pooled_calls import PooledCall, PooledError
from octavo.wording import shown
from octavo_registry.events import RequestOutcome

POLL_SECONDS: Final = 1.0
NOT_YET: Final = "{}() is not available yet: this version embeds texts, with embed() and encode()"


@dataclass(slots=True)
class CallResult:
    """What the texts of one call have become."""

    call: int
    num_texts: int
    arrival_seconds: float = field(default_factory=time.monotonic)
    ids: list[list[int]] = field(default_factory=list)
    vectors_NW: NDArray[np.float32] | None = None
    """None until the first one has come."""
    errors: dict[int, PooledError] = field(default_factory=dict)
    num_told: int = 0

    def take(self, outputs: StepOutputs) -> int:
        """Note what a step gave; returns how many texts it told of."""
        before = self.num_told
        for rows in outputs.pooled:
            if rows.call != self.call:  # one that was ended, and whose vectors were on their way
                continue
            numbers = np.frombuffer(rows.numbers, np.int32)
            if len(numbers):
                vectors = np.frombuffer(rows.rows, np.float32).reshape(len(numbers), -1)
                if self.vectors_NW is None:
                    shape = (self.num_texts, vectors.shape[1])
                    self.vectors_NW = np.full(shape, np.nan, np.float32)
                self.vectors_NW[numbers] = vectors
            self.errors.update((error.number, error) for error in rows.errors)
            self.num_told += len(numbers) + len(rows.errors)
        return self.num_told - before

    def vector(self, number: int) -> NDArray[np.float32]:
        """A text's vector; an empty one for a text that has none."""
        if self.vectors_NW is None or number in self.errors:
            return np.zeros(0, np.float32)
        vector_W: NDArray[np.float32] = self.vectors_NW[number]
        return vector_W

    def error(self, number: int) -> tuple[str, str] | tuple[None, None]:
        """Why a text has no vector, and the class of that."""
        error = self.errors.get(number)
        return (None, None) if error is None else (error.error, error.error_type)


class EmbedsTexts:
    """The part of ``LLM`` for models that read texts; calls of several threads wait for another."""

    _front: Frontend
    _lock: threading.RLock

    def _check_open(self) -> None:
        raise NotImplementedError

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """The vector of each text; the outputs are in the prompts' order.

        A prompt that is wrong ends the call. A text that fails inside the engine has ``error`` set
        and an empty vector; the others are not touched.
        """
        result = self._read_texts("embed", prompts, pooling_params, use_tqdm=use_tqdm)
        return [
            EmbeddingRequestOutput(
                request_id=f"{result.call}-{number}",
                prompt_token_ids=ids,
                outputs=EmbeddingOutput(result.vector(number)),
                error=result.error(number)[0],
                error_type=result.error(number)[1],
            )
            for number, ids in enumerate(result.ids)
        ]

    def embed_array(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | None = None,
        *,
        use_tqdm: bool = True,
    ) -> NDArray[np.float32]:
        """The vectors of all texts [N, W], as one array; a text that fails raises."""
        result = self._read_texts("embed_array", prompts, pooling_params, use_tqdm=use_tqdm)
        for number, error in result.errors.items():
            raise error_class(error.error_type)(f"prompt {number}: {error.error}")
        if result.vectors_NW is None:
            return np.zeros((0, 0), np.float32)
        return result.vectors_NW

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | None = None,
        *,
        pooling_task: str | None = None,
        use_tqdm: bool = True,
    ) -> list[PoolingRequestOutput]:
        """As ``embed``, with tensors; ``pooling_task`` is "embed", or left to the model."""
        if pooling_task not in (None, "embed"):
            raise ParameterError(
                f"pooling_task={pooling_task!r} is not available yet; there is: embed"
            )
        result = self._read_texts("encode", prompts, pooling_params, use_tqdm=use_tqdm)
        return [
            PoolingRequestOutput(
                request_id=f"{result.call}-{number}",
                prompt_token_ids=ids,
                outputs=PoolingOutput(result.vector(number)),
                error=result.error(number)[0],
                error_type=result.error(number)[1],
            )
            for number, ids in enumerate(result.ids)
        ]

    def classify(self, *args: object, **kwargs: object) -> NoReturn:
        """Class probabilities."""
        self._check_open()
        raise ConfigError(NOT_YET.format("classify"))

    def score(self, *args: object, **kwargs: object) -> NoReturn:
        """Similarity of pairs."""
        self._check_open()
        raise ConfigError(NOT_YET.format("score"))

    def reward(self, *args: object, **kwargs: object) -> NoReturn:
        """What reward models make of texts."""
        self._check_open()
        raise ConfigError(NOT_YET.format("reward"))

    def _setup(self, method: str) -> PoolingSetup:
        setup = self._front.folder.pooling
        if setup is None:
            raise ConfigError(
                f"{method}() is for models that embed texts, and {self._front.folder.architecture} "
                "writes; the architectures that embed: docs/models.md"
            )
        return setup

    @cached_property
    def _texts(self) -> TextInputs:
        front = self._front
        return TextInputs(
            self._setup("embed"),
            front.tokenizer,
            max_model_len=front.client.ready.max_model_len,
            vocab_size=front.client.ready.vocab_size,
            tokenizer_failed=failure_of(front.host, front.config.model.tokenizer_mode),
        )

    def _read_texts(
        self,
        method: str,
        prompts: Prompt | Sequence[Prompt],
        params: PoolingParams | None,
        *,
        use_tqdm: bool,
    ) -> CallResult:
        """Send the texts and step until all have been told; on any exception none is left."""
        self._check_open()
        setup = self._setup(method)
        if not isinstance(params, PoolingParams | None):
            raise ParameterError(f"pooling_params={shown(params)} must be PoolingParams")
        params = params or PoolingParams()
        split = split_prompts(prompts)
        call = next(self._front.inputs.sequence_ids)
        result = CallResult(call, len(split))
        client = self._front.client
        unsent: Iterator[TextSlice] = self._texts.slices(split, params)
        unit_length = setup.unit_length if params.normalize is None else params.normalize
        with (
            self._lock,
            ProgressBar(len(split), shown=use_tqdm) as bar,
            InterruptsBetweenSteps() as interrupts,
        ):
            try:
                while result.num_told < len(split):
                    interrupts.check()
                    self._check_open()
                    some = next(unsent, None)
                    if some is not None:
                        token_ids, lengths, skips = some.columns
                        result.ids += some.ids
                        client.add_call(
                            PooledCall(
                                call=call,
                                num_texts=len(split),
                                first=some.first,
                                token_ids=token_ids,
                                lengths=lengths,
                                skips=skips,
                                width=self._width(params.dimensions),
                                unit_length=unit_length,
                            )
                        )
                    step = client.poll(POLL_SECONDS if some is None else 0.0)
                    if step is not None:
                        bar.advance(num_requests=result.take(step), num_tokens=0)
            except BaseException as error:
                if client.alive:
                    client.abort([call])
                self._tell(result, "abort", str(error))
                raise
        self._tell(result, "error" if result.errors else "stop")
        return result

    def _tell(self, result: CallResult, reason: str, error: str | None = None) -> None:
        """Tell plugins how a call ended, once for all of its texts."""
        for number in sorted(result.errors)[:1]:
            error = f"text {number}: {result.errors[number].error}"
        self._front.host.notify(
            "request_finished",
            outcome=RequestOutcome(
                request_id=str(result.call),
                finish_reasons=(reason,),
                num_prompt_tokens=sum(map(len, result.ids)),
                num_cached_tokens=0,
                num_output_tokens=0,
                seconds_to_first_token=None,
                seconds=time.monotonic() - result.arrival_seconds,
                error=error,
            ),
        )

    def _width(self, dimensions: int | None) -> int:
        """Entries that are asked for; 0: all."""
        if dimensions is None:
            return 0
        config = self._front.folder.config
        sizes = config.get("matryoshka_dimensions")
        if not sizes and not config.get("is_matryoshka"):
            raise ParameterError(
                f"dimensions={dimensions}: the model's config.json does not say that vectors may "
                "be cut (is_matryoshka, matryoshka_dimensions); hf_overrides may say so",
                param="dimensions",
            )
        if sizes and not isinstance(sizes, list):
            raise ConfigError(f"matryoshka_dimensions={shown(sizes)} in config.json is no list")
        most = config["hidden_size"]
        if not 1 <= dimensions <= most or (sizes and dimensions not in sizes):
            raise ParameterError(
                f"dimensions={dimensions} must be {f'one of {sizes}' if sizes else f'1 to {most}'}",
                param="dimensions",
            )
        return dimensions
