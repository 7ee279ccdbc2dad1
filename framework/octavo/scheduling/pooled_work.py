"""Texts that become vectors: which run in a step, and what its result means."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.errors import ParameterError, error_name
from octavo.messages import StepOutputs
from octavo.pooled_calls import PooledCall, PooledError, PooledRows
from octavo.scheduling.texts import TextBatch, TextQueues, Texts
from octavo.steps.plan import StepResult, TokenMasks
from octavo.steps.pooled_plan import PooledPlan, PooledSections, pack_pooled
from octavo.steps.slot_fields import Ints
from octavo.wording import counted
from octavo_registry.faults import one_line

log = logging.getLogger(__name__)
NO_INTS: Ints = np.zeros(0, np.int32)


class VectorFaults(Protocol):
    """Who is to blame for what went wrong in a step."""

    def blame_vector(self) -> Exception:
        """The error for a vector that is not finite."""
        ...

    def name(self, error: BaseException) -> BaseException:
        """What a step has raised, with the name of who made it."""
        ...


class PooledRecord(NamedTuple):
    """What is remembered of a step under way."""

    batch: TextBatch


class PooledWork:
    """Plans steps of whole texts. A step depends on no other, so one that raises is cut in halves
    until the text that makes it raise is alone."""

    def __init__(
        self, *, max_step_tokens: int, max_model_len: int, vocab_size: int, faults: VectorFaults
    ) -> None:
        self._max_step_tokens = max_step_tokens
        self._max_model_len, self._vocab_size = max_model_len, vocab_size
        self._faults = faults
        self._queues = TextQueues()
        self._halves: list[TextBatch] = []
        """Parts of steps that raised; each is a step."""
        self._num_left: dict[int, int] = {}
        """Texts of each call that nothing was told of yet."""
        self._told: list[PooledRows] = []
        """What the next outputs bring, whatever the steps give."""
        self._step_id = 0
        self._num_running = 0
        self._num_under_way = 0

    @property
    def has_work(self) -> bool:
        """See ``Work``, as for all methods here."""
        waits = self._queues.num_texts or self._halves or self._told
        return bool(waits) or self._num_under_way > 0

    def add(self, requests: list[PooledCall]) -> None:
        """Queue the texts; one that cannot run has an error in the next outputs."""
        for call in requests:
            self._num_left.setdefault(call.call, call.num_texts)
            batch = read_call(call)
            wrong_N = (batch.texts.lengths < 1) | (batch.texts.lengths > self._max_model_len)
            outside_T = (batch.ids < 0) | (batch.ids >= self._vocab_size)
            if outside_T.any():
                texts = np.repeat(np.arange(batch.texts.num_texts), batch.texts.lengths)
                wrong_N[texts[outside_T]] = True
            if wrong_N.any():
                limits = f"1 to {self._max_model_len} tokens below {self._vocab_size}"
                error = ParameterError(f"a text must have {limits}")
                self._told += self._failed(batch.texts.at(wrong_N), error)
                batch = batch.some(~wrong_N)
            if batch.texts.num_texts:
                self._queues.add(call.call, call.num_texts, batch)

    def abort(self, ids: list[int]) -> None:
        """Forget calls; what steps under way give for them is dropped."""
        for call in ids:
            if self._num_left.pop(call, None) is not None:
                self._queues.drop(call)
        self._told = [rows for rows in self._told if rows.call not in ids]

    def plan(self) -> tuple[PooledPlan, PooledRecord] | None:
        """Plan a step of what waits."""
        batch = self._next_half() or self._queues.take(self._max_step_tokens)
        if batch is None:
            return None
        self._step_id += 1
        self._num_under_way += 1
        self._num_running += batch.texts.num_texts
        texts = batch.texts
        sections = PooledSections(
            ids=batch.ids,
            query_starts=np.append(texts.starts, len(batch.ids)).astype(np.int32),
            seconds=texts.seconds if (texts.seconds < texts.lengths).any() else NO_INTS,
            skips=texts.skips if texts.skips.any() else NO_INTS,
            widths=texts.widths if texts.widths.any() else NO_INTS,
            unit_lengths=texts.unit_lengths if texts.unit_lengths.any() else NO_INTS,
        )
        return pack_pooled(self._step_id, texts.lengths, sections), PooledRecord(batch)

    def _next_half(self) -> TextBatch | None:
        """A part of a step that raised, without texts that nobody waits for now."""
        while self._halves:
            batch = self._halves.pop()
            live_N = self._live(batch.texts)
            if live_N.all():
                return batch
            if live_N.any():
                return batch.some(live_N)
        return None

    def masks(self, record: PooledRecord, outputs: StepOutputs) -> TokenMasks:
        """No step awaits any."""
        raise RuntimeError("a step of vectors awaits no masks")

    def apply(self, record: PooledRecord, result: StepResult) -> StepOutputs:
        """Tell each call its vectors."""
        self._end_step(record)
        vectors, texts = result.vectors, record.batch.texts
        if vectors is None:
            raise RuntimeError("a step of texts gave no vectors")
        bad_N = ~vectors.is_finite_R
        told = self._failed(texts.at(bad_N), self._faults.blame_vector()) if bad_N.any() else []
        for call, places in self._by_call(texts, ~bad_N):
            rows_NW, width = vectors.rows_RW[places], int(texts.widths[places[0]])
            rows_NW = rows_NW[:, :width] if width else rows_NW
            told.append(
                PooledRows(
                    call=call,
                    numbers=texts.numbers[places].tobytes(),
                    rows=rows_NW.tobytes(),
                    is_last=self._count_told(call, len(places)),
                )
            )
        self._told += told
        return self.take_events()

    def fail(
        self, record: PooledRecord, later: list[PooledRecord], error: BaseException
    ) -> StepOutputs:
        """Cut the step in halves; a text that was alone in it has failed. Others go on."""
        self._end_step(record)
        texts = record.batch.texts
        log.warning("a step of %s raised: %s", counted(texts.num_texts, "text"), one_line(error))
        log.debug("where the step raised:", exc_info=error)
        if texts.num_texts == 1:
            self._told += self._failed(texts, self._faults.name(error))
        else:
            self._halves += reversed(record.batch.halves())
        return self.take_events()

    def take_events(self) -> StepOutputs:
        """What has not been told yet."""
        told, self._told = self._told, []
        return StepOutputs(pooled=told)

    def stats(self) -> dict[str, int]:
        """Texts that run and that wait."""
        halves = sum(batch.texts.num_texts for batch in self._halves)
        return {
            "num_running": self._num_running,
            "num_waiting": self._queues.num_texts + halves,
        }

    def close(self) -> None:
        """Nothing runs beside the steps."""

    def _end_step(self, record: PooledRecord) -> None:
        self._num_under_way -= 1
        self._num_running -= record.batch.texts.num_texts

    def _live(self, texts: Texts) -> NDArray[np.bool_]:
        return np.isin(texts.calls, np.fromiter(self._num_left, np.int64, len(self._num_left)))

    def _by_call(
        self, texts: Texts, chosen_N: NDArray[np.bool_]
    ) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Places of the chosen texts of each call that has not been aborted."""
        places = np.flatnonzero(chosen_N)
        places = places[np.argsort(texts.calls[places], kind="stable")]
        borders = np.flatnonzero(np.diff(texts.calls[places])) + 1
        for part in np.split(places, borders):
            if len(part) and int(texts.calls[part[0]]) in self._num_left:
                yield int(texts.calls[part[0]]), part

    def _failed(self, texts: Texts, error: BaseException) -> list[PooledRows]:
        """The error of each of these texts."""
        told = []
        for call, places in self._by_call(texts, np.ones(texts.num_texts, np.bool_)):
            errors = [
                PooledError(number, str(error), error_name(error))
                for number in texts.numbers[places].tolist()
            ]
            is_last = self._count_told(call, len(places))
            told.append(PooledRows(call=call, errors=errors, is_last=is_last))
        return told

    def _count_told(self, call: int, count: int) -> bool:
        """Whether all of the call's texts have been told with these."""
        self._num_left[call] -= count
        if self._num_left[call]:
            return False
        del self._num_left[call]
        return True


def read_call(call: PooledCall) -> TextBatch:
    """A call's texts in columns."""
    lengths, ids = np.frombuffer(call.lengths, np.int32), np.frombuffer(call.token_ids, np.int32)
    count = len(lengths)
    same = np.ones(count, np.int32)
    ends = np.cumsum(lengths, dtype=np.int64)
    texts = Texts(
        calls=np.full(count, call.call, np.int64),
        numbers=np.arange(call.first, call.first + count, dtype=np.int32),
        lengths=lengths,
        seconds=np.frombuffer(call.seconds, np.int32) if call.seconds else lengths,
        skips=np.frombuffer(call.skips, np.int32) if call.skips else 0 * same,
        widths=call.width * same,
        unit_lengths=call.unit_length * same,
        starts=ends - lengths,
    )
    return TextBatch(texts, ids)
