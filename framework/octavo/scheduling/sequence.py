"""One continuation of one request, from arrival to end."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.guided.byte_automaton import ByteAutomatonGuide
from octavo.guided.sequence import GuidedSequence
from octavo.messages import EngineRequest, MediaInput, SequenceLogprobs
from octavo.residency.pool import Need
from octavo.steps.loads import Span


@dataclass(slots=True)
class SwappedBlocks:
    """What a sequence preempted by swap left on the host: (table index, swap block) by group."""

    num_tokens: int
    blocks_by_group: list[list[tuple[int, int]]]
    line: int | None = None
    """A line of the host with its recurrent state, where there is one."""


class Sequence:
    """The scheduler's record. While it runs, tokens and counts are in ``SlotTable`` at ``slot``."""

    __slots__ = (
        "arrival",
        "arrival_seconds",
        "chain_seed",
        "digests",
        "followers",
        "guide",
        "id",
        "index",
        "is_asked",
        "leader",
        "media_marks",
        "needs",
        "num_cached_tokens",
        "placed_seconds",
        "places",
        "position_delta",
        "positions_AP",
        "prompt_logprobs",
        "reported",
        "request",
        "slot",
        "suspect_until",
        "swapped",
        "tokens",
    )

    def __init__(
        self,
        request: EngineRequest,
        index: int,
        arrival: int,
        chain_seed: bytes,
        needs: tuple[Need, ...] = (),
    ) -> None:
        self.request = request
        self.index = index
        self.id = request.sequences[index]
        self.arrival = arrival
        self.arrival_seconds = time.monotonic()
        self.placed_seconds: float | None = None
        """When it first got a slot."""
        self.chain_seed = chain_seed
        self.tokens: NDArray[np.int32] = np.array(request.prompt_token_ids, np.int32)
        self.media_marks = {
            item.start: bytes.fromhex(item.content_hash) for item in request.media if item.spans
        }
        """What prefixes hold besides tokens."""
        self.positions_AP: NDArray[np.int32] | None = None
        """Positions of the prompt's tokens by axis; None: their numbers on all axes."""
        self.position_delta = 0
        """What later tokens' positions have more than their numbers. They go on from the
        prompt's last token; steps in time of a long video before it may be beyond."""
        if request.positions:
            self.positions_AP = np.frombuffer(request.positions, np.int32).reshape(
                -1, self.prompt_len
            )
            self.position_delta = int(self.positions_AP[:, -1].max()) + 1 - self.prompt_len
        self.needs = needs
        """What is on the device, and pinned, while it runs."""
        self.places: dict[str, Span] = {}
        """Where that lies, by the pool's name, while it runs."""
        self.slot = -1
        self.digests: list[bytes] = []
        self.swapped: SwappedBlocks | None = None
        self.is_asked = False
        """Whether a store was asked for its prefix since it waits."""
        self.leader: Sequence | None = None
        self.followers: list[Sequence] = []
        self.guide: GuidedSequence | None = None
        self.num_cached_tokens = 0
        self.reported = False
        self.prompt_logprobs: list[SequenceLogprobs] = []
        self.suspect_until = 0
        """Computed tokens at which a suspect has passed the batch that raised."""

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def max_len(self) -> int:
        """Tokens of prompt and output at which it ends by length."""
        return self.prompt_len + self.request.sampling.max_tokens

    @property
    def media_end(self) -> int:
        """Up to this token its media matter, as rows or by the positions they make."""
        if self.positions_AP is not None:
            return self.prompt_len
        return max((item.end for item in self.request.media), default=0)

    @property
    def cross(self) -> MediaInput | None:
        """The item that cross attention reads."""
        return next((item for item in self.request.media if item.cross_rows), None)

    @property
    def num_cross_rows(self) -> int:
        """Rows of that item."""
        return self.cross.cross_rows if self.cross else 0

    @property
    def automaton(self) -> ByteAutomatonGuide | None:
        """Its guide, if it is one that the device walks."""
        return None if self.guide is None else self.guide.automaton

    @property
    def seed(self) -> int:
        """Each continuation samples from its own stream."""
        return self.request.sampling.seed + self.index

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether prompt logprobs are still to be computed and reported."""
        sampling = self.request.sampling
        return sampling.prompt_logprobs >= 0 and self.index == 0 and not self.reported
