"""Sequences on their way through guides, and the masks of their next tokens."""

from __future__ import annotations

import os
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from octavo.engine.messages import SequenceEnd
from octavo.errors import DeadEndError, OctavoError, ParameterError, RequestFailedError
from octavo.guided.remote import RemoteGuide, RemoteState
from octavo_registry.faults import one_line
from octavo_registry.guided import FillsTogether, Guide, GuideState

MASK_SECONDS = 0.02
"""A mask that takes longer lets its row sit out the step."""
REMOTE_SECONDS = 0.002
"""The same of a mask that a child fills, where there are rows that need not wait for it."""
LATEST_SECONDS = 10.0
"""Of a native backend; a child is ended by the limits on each of its masks."""
ROWS_PER_JOB = 4
"""A native backend needs some 20 us a mask, and so does handing a job to a thread; one that fills
masks together gets them all as one job."""


@dataclass(frozen=True, slots=True)
class CompiledGuide:
    """A guide, and how long a request waited for it."""

    guide: Guide
    seconds: float = 0.0


class GuidedSequence:
    """Advanced by the engine's thread; its mask is filled in another.

    While ``is_filling`` the state belongs to that thread.
    """

    __slots__ = (
        "__weakref__",
        "error",
        "filling",
        "fills_together",
        "forced",
        "is_current",
        "is_finished",
        "is_slow",
        "mask_W",
        "seconds",
        "since",
        "state",
    )

    def __init__(self, compiled: CompiledGuide, vocab_size: int, taken: Sequence[int] = ()) -> None:
        """``taken``: tokens of the prompt that another sequence of the guide has accepted."""
        self.state: GuideState = _state_behind(compiled.guide, taken)
        self.fills_together = isinstance(self.state, FillsTogether)  # a slow question to ask
        self.seconds = compiled.seconds
        self.mask_W: NDArray[np.int32] = np.zeros((vocab_size + 31) // 32, np.int32)
        self.is_current = False
        """The mask is that of the next token."""
        self.forced: list[int] = []
        """The next tokens where there is no choice; the mask is that of the first."""
        self.filling: Future[None] | None = None
        self.since = 0.0
        """When the filling was begun."""
        self.is_slow = False
        """The last mask was late, or another of the same call: the next is filled alone."""
        self.is_finished = False
        """Nothing may follow."""
        self.error: Exception | None = None
        """What the backend raised; the sequence cannot go on."""

    @property
    def is_filling(self) -> bool:
        """Whether a thread is at work on the mask."""
        return self.filling is not None and not self.filling.done()

    def accept(self, token: int) -> None:
        """Advance by a token that was drawn."""
        self.is_current = False
        try:
            if not self.state.accept(token):
                raise ParameterError(
                    "other parameters (allowed_token_ids, bad_words, logit_bias, min_tokens) ban "
                    f"all that the constraint allows: token {token} is not allowed"
                )
            self.is_finished = self.state.is_finished()
        except BaseException as error:  # also a panic of native code: it is this sequence's alone
            self.error = as_error(error)

    def fill(self) -> None:
        """Make the mask current; for the thread that ``MaskFiller`` gives."""
        if self.fill_forced():
            return
        error: BaseException | None = None
        try:
            self.state.fill_bitmask(self.mask_W)
        except BaseException as raised:
            error = raised
        self.filled(error)

    def fill_forced(self) -> bool:
        """Make the mask current where the next token has no choice, or the state fails: True."""
        try:
            self.forced = self.state.forced()
            if not self.forced:
                return False
            self.mask_W = np.zeros_like(self.mask_W)
            word, bit = divmod(self.forced[0], 32)
            self.mask_W.view(np.uint32)[word] = 1 << bit
        except BaseException as error:
            self.filled(error)
        else:
            self.filled(None)
        return True

    def filled(self, error: BaseException | None) -> None:
        """The mask is there, unless this was raised."""
        try:
            if error is not None:
                raise error
            self.is_finished = self.state.is_finished()  # a child tells it with the mask
            if not self.is_finished and not self.mask_W.any():
                raise DeadEndError("no token continues the text, and the constraint is not met")
        except BaseException as raised:
            self.error = as_error(raised)
        self.is_current = True


def _state_behind(guide: Guide, tokens: Sequence[int]) -> GuideState:
    if isinstance(guide, RemoteGuide):
        return guide.state(list(tokens))  # the child hears of them with the first mask
    state = guide.start()
    for token in tokens:
        if not state.accept(token):
            raise RequestFailedError(f"the guide does not allow token {token} of the prompt")
    return state


def guide_end(sequence_id: int, error: Exception) -> SequenceEnd:
    """The end of a sequence whose guide has failed."""
    ours = isinstance(error, OctavoError)
    return SequenceEnd(
        sequence_id,
        "error",
        error=f"the guide cannot go on: {error if ours else one_line(error)}",
        error_type=type(error).__name__ if ours else RequestFailedError.__name__,
    )


def as_error(error: BaseException) -> Exception:
    """The same, where it is no panic of native code, which ``except Exception`` lets pass."""
    return error if isinstance(error, Exception) else RuntimeError(one_line(error))


class MaskFiller:
    """Fills masks in threads, for a limited time a step."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(min(8, os.cpu_count() or 1), "octavo-masks")

    def fill(self, sequences: Sequence[GuidedSequence], *, among_others: bool) -> None:
        """Make their masks current, save for those that take too long; these go on meanwhile.

        One that does not come to an end is given up. Those that children fill are waited for only
        where no other row would be, of these sequences or ``among_others``.
        """
        native, remote = [], []
        for each in sequences:
            if not isinstance(each.state, RemoteState):
                native.append(each)
                continue
            remote.append(each)
            if _wants_mask(each):
                each.filling = each.state.submit(partial(_fill_if_used, weakref.ref(each)))
        wanted = list(filter(_wants_mask, native))
        for fill, job in _jobs(wanted):
            future = self._threads.submit(fill, job)
            for each in job:
                each.filling, each.since = future, time.monotonic()
        _wait(native, MASK_SECONDS)
        for each in wanted:
            each.is_slow = each.is_filling
        _wait(remote, REMOTE_SECONDS if native or among_others else MASK_SECONDS)
        given_up = time.monotonic() - LATEST_SECONDS
        for each in native:
            if each.is_filling and each.since < given_up:
                each.error = TimeoutError(f"a mask took more than {LATEST_SECONDS:.0f} s")

    def close(self) -> None:
        """End the threads when they have nothing left to do."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _wants_mask(sequence: GuidedSequence) -> bool:
    return not sequence.is_current and not sequence.is_filling


def _wait(sequences: list[GuidedSequence], seconds: float) -> None:
    wait([each.filling for each in sequences if each.filling is not None], seconds)


_Job = tuple[Callable[[list[GuidedSequence]], None], list[GuidedSequence]]


def _jobs(sequences: list[GuidedSequence]) -> Iterator[_Job]:
    """Who fills which masks: the slow ones alone, others together where their backend can."""
    one_by_one, together = list[GuidedSequence](), defaultdict[type, list[GuidedSequence]](list)
    for each in sequences:
        if each.is_slow:
            yield _fill_all, [each]
        elif each.fills_together:
            together[type(each.state)].append(each)
        else:
            one_by_one.append(each)
    for job in together.values():
        yield _fill_together, job
    for begin in range(0, len(one_by_one), ROWS_PER_JOB):
        yield _fill_all, one_by_one[begin : begin + ROWS_PER_JOB]


def _fill_all(sequences: list[GuidedSequence]) -> None:
    for sequence in sequences:
        sequence.fill()


def _fill_together(sequences: list[GuidedSequence]) -> None:
    sequences = [each for each in sequences if not each.fill_forced()]
    if not sequences:
        return
    masks_MW = np.zeros((len(sequences), len(sequences[0].mask_W)), np.int32)
    states = [each.state for each in sequences]
    first = cast(FillsTogether, states[0])
    try:
        errors = first.fill_bitmasks(states, masks_MW)
        filled = list(zip(sequences, masks_MW, errors, strict=True))
    except BaseException:  # of one of them, most likely: it is to fail alone
        return _fill_all(sequences)
    for each, mask_W, error in filled:
        each.mask_W = mask_W
        each.filled(error)


def _fill_if_used(reference: weakref.ref[GuidedSequence]) -> None:
    sequence = reference()
    if sequence is not None:  # else its request has ended while it waited for the child
        sequence.fill()
