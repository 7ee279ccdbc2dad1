"""Sequences on their way through guides, and the masks of their next tokens."""

from __future__ import annotations

import os
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from octavo.errors import DeadEndError, ParameterError, RequestFailedError
from octavo.guided.byte_automaton import AutomatonState, ByteAutomatonGuide, ByteAutomatonGuideState
from octavo.guided.remote import RemoteGuide, RemoteState
from octavo.messages import SequenceEnd, error_end
from octavo_registry.faults import one_line
from octavo_registry.guided import FillsTogether, Guide, GuideState

MASK_SECONDS = 0.02
"""A mask that takes longer lets its row sit out the step."""
SOON_SECONDS = 0.003
"""What the passes of most models take at least; masks that are filled meanwhile cost nothing."""
FEW = 1 / 8
"""So many of a step's rows are not waited for any longer: others would wait for them."""
REMOTE_SECONDS = 0.002
"""How long to wait for a mask that a child fills, where there are rows that need not wait."""
LATEST_SECONDS = 10.0
"""How late a native backend may be; a child is ended by the limits on each of its masks."""
ROWS_PER_JOB = 4
"""A native backend needs some 20 us a mask, and so does handing a job to a thread."""

DEAD_END = "no token continues the text, and the constraint is not met"


@dataclass(frozen=True, slots=True)
class CompiledGuide:
    """A guide, how long a request waited for it, and the name of its backend."""

    guide: Guide
    seconds: float = 0.0
    backend: str = ""


class GuidedSequence:
    """Advanced by the engine's thread; its mask is filled in another.

    While ``is_filling`` the state belongs to that thread.
    """

    __slots__ = (
        "__weakref__",
        "backend",
        "error",
        "filling",
        "fills_together",
        "has_choice",
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
        self.seconds, self.backend = compiled.seconds, compiled.backend
        self.mask_W: NDArray[np.int32] = np.zeros((vocab_size + 31) // 32, np.int32)
        self.is_current = False
        """The mask is that of the next token."""
        self.has_choice = True
        """The mask has more than one token."""
        self.filling: Future[None] | None = None
        self.since = 0.0
        """When the filling was begun."""
        self.is_slow = False
        """The last mask was late, or another of the same call: the next is filled alone."""
        self.is_finished = self.automaton is not None and self.state.is_finished()
        """Nothing may follow; of a guide that is no automaton it is known with the first mask."""
        self.error: Exception | None = None
        """What the backend raised; the sequence cannot go on."""

    @property
    def automaton(self) -> ByteAutomatonGuide | None:
        """The guide, if it is one that the device walks."""
        return self.state.guide if isinstance(self.state, ByteAutomatonGuideState) else None

    @property
    def place(self) -> AutomatonState:
        """Where it stands in its automaton."""
        return (
            self.state.place
            if isinstance(self.state, ByteAutomatonGuideState)
            else AutomatonState()
        )

    @property
    def is_filling(self) -> bool:
        """Whether a thread is at work on the mask."""
        return self.filling is not None and not self.filling.done()

    def accept(self, token: int) -> None:
        """Advance by a token that was sampled."""
        self.is_current = False
        try:
            if not self.state.accept(token):
                raise self._refusal(token)
            self.is_finished = self.state.is_finished()
        except BaseException as error:  # also a panic of native code: it is this sequence's alone
            self.error = as_error(error)

    def _refusal(self, token: int) -> Exception:
        """Why a token was sampled that may not come."""
        if self.automaton is not None:  # the host has not seen its mask
            self.state.fill_bitmask(self.mask_W)
            if not self.mask_W.any():
                return DeadEndError(DEAD_END)
        return ParameterError(
            "other parameters (allowed_token_ids, bad_words, logit_bias, min_tokens) ban "
            f"all that the constraint allows: token {token} is not allowed"
        )

    def forced(self) -> list[int]:
        """The next tokens without a choice, of which the mask has the first."""
        if self.has_choice or self.error is not None:
            return []
        try:
            return self.state.forced()
        except BaseException as error:
            self.error = as_error(error)
            return []

    def fill(self) -> None:
        """Make the mask current; for the thread that ``MaskFiller`` gives."""
        error: BaseException | None = None
        try:
            fill_masks(self.state, (), self.mask_W[None])
        except BaseException as raised:
            error = raised
        self.filled(error, int(np.count_nonzero(self.mask_W)))

    def filled(self, error: BaseException | None, num_words: int) -> None:
        """The mask is there, with so many words that are not 0, unless this was raised."""
        try:
            if error is not None:
                raise error
            self.is_finished = self.state.is_finished()  # a child tells it with the mask
            if not self.is_finished and not num_words:
                raise DeadEndError(DEAD_END)
            self.has_choice = num_words != 1 or _has_several_bits(self.mask_W)
        except BaseException as raised:
            self.error = as_error(raised)
        self.is_current = True


def fill_masks(state: GuideState, drafts: Sequence[int], masks_KW: NDArray[np.int32]) -> None:
    """Fill the masks of the next token and of those behind drafts of it.

    The state stays where it is. Nothing may come behind a draft that may not.
    """
    state.fill_bitmask(masks_KW[0])
    if not drafts:
        return
    masks_KW[1:] = 0
    ahead = state.fork()
    for draft, mask_W in zip(drafts, masks_KW[1:], strict=True):
        if ahead.is_finished() or not ahead.accept(draft):
            return
        ahead.fill_bitmask(mask_W)


def _has_several_bits(mask_W: NDArray[np.int32]) -> bool:
    word = int(mask_W.view(np.uint32).max())
    return word & (word - 1) != 0


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
    return error_end(sequence_id, error, before="the guide cannot go on: ")


def as_error(error: BaseException) -> Exception:
    """An error as it is, but for panics of native code, which ``except Exception`` lets pass."""
    return error if isinstance(error, Exception) else RuntimeError(one_line(error))


class MaskFiller:
    """Fills masks in threads, for a limited time a step."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(min(8, os.cpu_count() or 1), "octavo-masks")

    def fill(self, sequences: Sequence[GuidedSequence], *, num_rows: int) -> None:
        """Make their masks current, save for those that take too long; these go on meanwhile.

        One that does not come to an end is given up. Those that children fill are waited for only
        where no other of the step's rows would wait.
        """
        native, remote = [], []
        for each in sequences:
            if not isinstance(each.state, RemoteState):
                native.append(each)
                continue
            remote.append(each)
            if _wants_mask(each):
                each.filling = each.state.submit(partial(_fill_if_used, weakref.ref(each)))
        jobs = []
        for fill, job in _jobs([each for each in native if _wants_mask(each)]):
            future = self._threads.submit(fill, job)
            jobs.append((future, job))
            for each in job:
                each.filling, each.since = future, time.monotonic()
        _wait_for_most(native, num_rows)
        for future, job in jobs:
            for each in job:
                each.is_slow = not future.done()
        seconds = REMOTE_SECONDS if len(remote) < num_rows else MASK_SECONDS
        wait({each.filling for each in remote if each.filling is not None}, seconds)
        given_up = time.monotonic() - LATEST_SECONDS
        for each in native:
            if each.since < given_up and each.is_filling:
                each.error = TimeoutError(f"a mask took more than {LATEST_SECONDS:.0f} s")

    def close(self) -> None:
        """End the threads when they have nothing left to do."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _wants_mask(sequence: GuidedSequence) -> bool:
    return not sequence.is_current and not sequence.is_filling


def _wait_for_most(sequences: list[GuidedSequence], num_rows: int) -> None:
    """Until all masks are there, or a moment has gone by and only a few of the rows' lack."""
    deadline = time.monotonic() + MASK_SECONDS
    rows = Counter(each.filling for each in sequences if each.filling is not None)
    late = wait(rows, min(SOON_SECONDS, MASK_SECONDS)).not_done
    while sum(rows[future] for future in late) > FEW * num_rows:
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            return
        late = wait(late, seconds, FIRST_COMPLETED).not_done


_Job = tuple[Callable[[list[GuidedSequence]], None], list[GuidedSequence]]


def _jobs(sequences: list[GuidedSequence]) -> Iterator[_Job]:
    """Who fills which masks: the slow ones alone, a few others together where their backend can."""
    kinds = defaultdict[type, list[GuidedSequence]](list)
    for each in sequences:
        if each.is_slow:
            yield _fill_all, [each]
        else:
            kinds[type(each.state)].append(each)
    for some in kinds.values():
        fill = _fill_together if some[0].fills_together else _fill_all
        for begin in range(0, len(some), ROWS_PER_JOB):
            yield fill, some[begin : begin + ROWS_PER_JOB]


def _fill_all(sequences: list[GuidedSequence]) -> None:
    for sequence in sequences:
        sequence.fill()


def _fill_together(sequences: list[GuidedSequence]) -> None:
    masks_MW = np.zeros((len(sequences), len(sequences[0].mask_W)), np.int32)
    states = [each.state for each in sequences]
    first = cast(FillsTogether, states[0])
    try:
        errors = first.fill_bitmasks(states, masks_MW)
        num_words = np.count_nonzero(masks_MW, axis=1).tolist()
        filled = list(zip(sequences, masks_MW, errors, num_words, strict=True))
    except BaseException:  # of one of them, most likely: it is to fail alone
        return _fill_all(sequences)
    for each, mask_W, error, num in filled:
        each.mask_W = mask_W
        each.filled(error, num)


def _fill_if_used(reference: weakref.ref[GuidedSequence]) -> None:
    sequence = reference()
    if sequence is not None:  # else its request has ended while it waited for the child
        sequence.fill()
