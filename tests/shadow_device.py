"""A device made of numpy that proves what the scheduler plans.

Instead of keys and values it stores, for each token, a digest of the whole prefix up to it. So it
sees any wrong block: a stale one, a missing copy, a wrong slot, a prefix hit on other content. It
draws each next token from the prefix's digest, so that any schedule must give the same tokens. What
the plan says of parameters it compares with those that the slot's sequence brought.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from octavo.cache.groups import CacheLayout
from octavo.cache.prefix import first_visible
from octavo.messages import MediaInput, TokenSampling
from octavo.scheduling.slots import ONE_EACH, Yields
from octavo.steps.layout import StateLayout
from octavo.steps.plan import (
    LogprobArrays,
    Sections,
    StepPlan,
    StepResult,
    TokenMasks,
    split_sections,
)
from shadow_automata import ShadowAutomata
from shadow_digests import content_of, extend_digest, first_digest, next_token
from shadow_sampling import ShadowRow, ShadowSampling, logprobs_of
from shadow_step import ShadowStep


class RemainderGuide:
    """Allows tokens whose sum with all before leaves a remainder; of some no more than one.

    It is complete after so many tokens.
    """

    def __init__(self, remainder: int, length: int, vocab_size: int, tokens=()) -> None:
        self.remainder, self.length, self.vocab_size = remainder, length, vocab_size
        self.tokens = list(tokens)

    def start(self) -> RemainderGuide:
        return RemainderGuide(self.remainder, self.length, self.vocab_size, self.tokens)

    def choices(self) -> list[int]:
        total = sum(self.tokens)
        found = [t for t in range(self.vocab_size) if (t + total) % 3 == self.remainder]
        return found[3:4] if len(self.tokens) % 10 in range(1, 9) else found

    def accept(self, token: int) -> bool:
        if token not in self.choices():
            return False
        self.tokens.append(token)
        return True

    def forced(self) -> list[int]:
        ahead, found = self.start(), []
        while not ahead.is_finished() and len(choices := ahead.choices()) == 1:
            found += choices
            ahead.accept(choices[0])
        return found

    def fill_bitmask(self, row) -> None:
        bits = np.zeros(32 * len(row), np.uint8)
        bits[self.choices()] = 1
        row[:] = np.packbits(bits, bitorder="little").view(np.int32)

    def is_finished(self) -> bool:
        return len(self.tokens) == self.length


def expected_tokens(
    prompt: list[int],
    sampling: TokenSampling,
    index: int,
    vocab_size: int,
    guide: RemainderGuide | None = None,
    adapter: str = "",
    heard: Sequence[MediaInput] = (),
) -> list[int]:
    """What a request's continuation must give, whatever else runs."""
    state = None if guide is None else guide.start()
    digest = first_digest(adapter)
    for item in heard:
        for content in content_of(item):
            digest = extend_digest(digest, content)
    for token in prompt:
        digest = extend_digest(digest, token)
    stop_ids, bias = sampling.stop_token_ids, sum(sampling.logit_bias.values())
    tokens: list[int] = []
    while len(tokens) < sampling.max_tokens:
        banned = stop_ids if len(tokens) < sampling.min_tokens else ()
        if state is not None:
            banned = set(range(vocab_size)).difference(state.choices())
        token = next_token(digest, sampling.seed + index, vocab_size, bias, banned)
        tokens.append(token)
        if token in stop_ids:
            break
        if state is not None:
            assert state.accept(token)
            if state.is_finished():
                break
        digest = extend_digest(digest, token)
    return tokens


class ShadowDevice:
    def __init__(
        self,
        layout: CacheLayout,
        state: StateLayout,
        num_blocks: int,
        num_swap_blocks: int,
        vocab_size: int,
        *,
        has_processors: bool,
        num_rank_rows: int = 0,
        num_media_rows: int = 0,
        num_automaton_words: int = 0,
        yields: Yields = ONE_EACH,
        num_stages: int = 1,
    ) -> None:
        self.layout = layout
        self.state = state
        self.vocab_size = vocab_size
        self.arena = np.zeros(state.num_words, np.int32)
        most_tokens = max((group.block_tokens for group in layout.groups), default=1)
        self.pages = np.full((num_blocks, most_tokens), -1, np.int64)
        self.filled: list[int] = []
        """Rows of media of which a step has made keys and values, by step."""
        self.encoded = np.zeros(num_media_rows, np.int64)
        self.swap = np.full((num_swap_blocks, most_tokens), -1, np.int64)
        self.raise_for: int | None = None
        """Token id whose appearance in a step's queries makes the step raise."""
        self.steps_to_fault = -1
        """At 0 a step raises, whoever is in it."""
        self.fails_at_once = False
        """Such a step raises before it has done anything; or when all is ready to run its rows."""
        self.broken = False
        """A step has raised and the host has not seen it: what runs meanwhile builds on garbage."""
        self.rank_rows = [""] * num_rank_rows
        """Whose they are."""
        self.automata = ShadowAutomata(self.field, num_automaton_words)
        self.held: dict[int, int] = {}
        """Digests of prefixes by line: what a hidden row is here."""
        self.sampling = ShadowSampling(self.field, self.automata, vocab_size, yields, num_stages)
        self._is_exact = yields == ONE_EACH
        self._has_processors = has_processors

    def field(self, name: str) -> np.ndarray:
        field = self.state.fields[name]
        words = self.arena[field.offset : field.offset + field.width * self.state.num_slots]
        return words.reshape(self.state.num_slots, field.width) if field.is_list else words

    def submit(self, plan: StepPlan) -> ShadowStep:
        try:
            draw = self.run(plan)
            return ShadowStep(draw if plan.awaits_masks else draw(None))
        except RuntimeError as error:
            self.broken = True
            return ShadowStep(error)

    def run(self, plan: StepPlan) -> Callable[[TokenMasks | None], StepResult]:
        """All of a step but its draws, which what it returns makes."""
        if self.fails_at_once:
            self._fail_when_it_is_time()
        self.sampling.begin(plan.step_id)
        parts = split_sections(plan.buffer, plan.sizes)
        assert np.array_equal(plan.slots, parts.slots)
        for block, swap in plan.moves.swap_out:
            self.swap[swap] = self.pages[block]
        for swap, block in plan.moves.swap_in:
            self.pages[block] = self.swap[swap]
        for source, target in plan.moves.copy:
            self.pages[target] = self.pages[source]
        indices = parts.diff_indices
        assert len(np.unique(indices)) == len(indices), "a word is written twice in one diff"
        self.arena[indices] = parts.diff_values
        self.sampling.forget_rewritten(indices, self.state.fields["num_tokens"].offset)
        for (first, rank), adapter in plan.adapters:
            assert adapter.head.rank == rank
            name = "garbage" if self.broken else adapter.head.content_hash
            self.rank_rows[first : first + rank] = [name] * rank
        for load in plan.automata:
            self.automata.load(load, is_garbage=self.broken)
        some = bool(self.field("adapter_rank")[[*parts.slots, *parts.sample_slots]].any())
        assert self.broken or plan.has_adapters == some
        is_all = len(plan.detach) >= self.state.num_slots  # whoever is attached
        for slot in plan.detach:
            assert self.broken or is_all or slot in self.sampling.attached
            self.sampling.attached.pop(slot, None)
        for new in plan.attach:
            assert self.broken or new.slot not in self.sampling.attached or not self._has_processors
            self.sampling.attached[new.slot] = new.sampling
            if self._has_processors and not self.broken:
                known = self.field("tokens")[new.slot, : self.field("num_tokens")[new.slot]]
                assert new.tokens.tolist() == known.tolist()
        slots, starts = parts.slots, parts.query_starts
        assert len(np.unique(slots)) == len(slots)
        computed, tokens = self.field("computed"), self.field("tokens")
        counts = np.diff(starts)
        assert (counts == plan.query_lens).all()
        drafts = self.sampling.share_out(plan, slots)
        num_drafts = np.array([len(each) for each in drafts], np.int32)
        ends = computed[slots] + counts + num_drafts
        assert self.broken or (ends <= plan.context_lens).all()
        if self._is_exact and not self.broken:
            assert (ends == plan.context_lens).all()
        assert plan.num_rows == len(slots)
        assert plan.num_rows or len(parts.held), "a step for nothing"
        if self._has_processors and not self.broken:
            assert set(slots.tolist()) <= set(self.sampling.attached)
        if not self.fails_at_once:
            self._fail_when_it_is_time()
        if self.raise_for is not None:
            for slot, count in zip(slots, counts, strict=True):
                seen = tokens[slot, computed[slot] : computed[slot] + count]
                if self.raise_for in seen:
                    raise RuntimeError(f"token {self.raise_for} is poison")
        for each in plan.encode:
            self.encoded[each.rows] = content_of(each.item)
        if len(parts.cross_rows):
            self.filled.append(len(parts.cross_rows))
            by_group = parts.cross_slots.reshape(-1, len(parts.cross_rows))
            for index, places in zip(self.layout.cross_groups, by_group, strict=True):
                blocks, offsets = np.divmod(places, self.layout.groups[index].block_tokens)
                self.pages[blocks, offsets] = self.encoded[parts.cross_rows]
        rows = {
            slot: ShadowRow(slot, self._run_row(slot, count, len(each)), each)
            for slot, count, each in zip(slots.tolist(), counts.tolist(), drafts, strict=True)
        }
        prompt_logprobs = self._prompt_logprobs(plan, parts)
        return partial(self._sample_rows, plan, parts, rows, prompt_logprobs, self.broken)

    def _fail_when_it_is_time(self) -> None:
        self.steps_to_fault -= 1
        if self.steps_to_fault == -1:
            raise RuntimeError("the device has failed once")

    def _sample_rows(
        self,
        plan: StepPlan,
        parts: Sections[np.ndarray],
        rows: dict[int, ShadowRow],
        prompt_logprobs: LogprobArrays | None,
        broken: bool,
        masks: TokenMasks | None,
    ) -> StepResult:
        if broken:  # what stands in the arena may be anything
            self.held.clear()
            garbage = np.zeros((len(plan.features), 1), np.int32)
            return StepResult(tokens_RK=garbage, prompt_logprobs=prompt_logprobs)
        sample_slots, starts = parts.sample_slots.tolist(), parts.query_starts
        computed, num_tokens = self.field("computed"), self.field("num_tokens")
        assert len(plan.features) == len(sample_slots)
        assert plan.masked == any(map(self.automata.has, sample_slots))
        first_held = len(sample_slots) - len(parts.held)
        put_off = set() if masks is None else set(masks.put_off_P.tolist())
        row_of = {slot: at for at, slot in enumerate(parts.slots.tolist())}
        computed[parts.slots] += plan.query_lens
        for at, slot in enumerate(sample_slots):
            assert computed[slot] == num_tokens[slot], "samples before its last token"
            assert (slot not in rows) == (at >= first_held), "a token is run again"
            if slot in rows:
                assert parts.logit_tokens[at] == starts[row_of[slot] + 1] - 1
            else:
                digest = self.held[parts.held[at - first_held]]
                rows[slot] = ShadowRow(slot, [digest], [], is_held=True)
            if at in parts.family_rows:
                self.held[slot + self.state.num_slots] = rows[slot].digests[0]
            if at in put_off:
                self.held[slot] = rows[slot].digests[0]
        sampling_rows = [rows[slot] for slot in sample_slots]
        return self.sampling.sample(plan, parts, sampling_rows, prompt_logprobs, masks)

    def _prompt_logprobs(self, plan: StepPlan, parts: Sections[np.ndarray]) -> LogprobArrays | None:
        """Of tokens that must follow those whose logits were asked for; ranks are positions."""
        targets = parts.prompt_targets
        rows_T = np.repeat(np.arange(plan.num_rows), plan.query_lens)
        places = []
        first = len(plan.features) - len(parts.held)
        for token, target in zip(parts.logit_tokens[first:], targets, strict=True):
            row = rows_T[token]
            slot = parts.slots[row]
            place = self.field("computed")[slot] + token - parts.query_starts[row] + 1
            assert self.broken or self.field("tokens")[slot, place] == target
            places.append(int(place))
        assert (len(targets) > 0) == (plan.num_prompt_logprobs >= 0)
        return logprobs_of(targets.tolist(), places, plan.num_prompt_logprobs)

    def _adapter(self, slot: int) -> str:
        first, rank = int(self.field("adapter_first")[slot]), int(self.field("adapter_rank")[slot])
        names = set(self.rank_rows[first : first + rank])
        assert self.broken or len(names) == (rank > 0), "rank rows of several adapters"
        return names.pop() if names else ""

    def _run_row(self, slot: int, count: int, num_drafts: int) -> list[int]:
        """Write tokens and drafts, then check all that their queries see.

        Returns the digests of what stands before the drafts, and behind each of them.
        """
        block_tokens = self.layout.block_tokens
        start = int(self.field("computed")[slot])
        stop = start + count + num_drafts
        tokens = self.field("tokens")[slot]
        digests = [self._heard(slot, first_digest(self._adapter(slot)))]
        for token in tokens[:stop].tolist():
            digests.append(extend_digest(digests[-1], token))
        for index, group in enumerate(self.layout.groups):
            if group.spec.rows is not None:
                continue
            table = self.field(f"table{index}")[slot]
            end = min(stop, len(table) * block_tokens) if self.broken else stop
            for position in range(start, end):
                block = table[position // block_tokens]
                assert self.broken or block != 0, "a token is written without a block"
                written = -2 if self.broken else digests[position + 1]
                self.pages[block, position % block_tokens] = written
            if self.broken:
                continue
            for position in range(first_visible(group.spec.window, start), end):
                block = table[position // block_tokens]
                found = self.pages[block, position % block_tokens]
                assert found == digests[position + 1], (
                    f"group {index}, slot {slot}: position {position} holds other content"
                )
        return digests[start + count :]

    def _heard(self, slot: int, digest: int) -> int:
        """The digest extended by what cross attention reads before any token."""
        for index in self.layout.cross_groups:
            table = self.field(f"table{index}")[slot]
            for position in range(self.field("cross_rows")[slot]):
                block, offset = divmod(position, self.layout.groups[index].block_tokens)
                assert self.broken or table[block] != 0, "encoded media without a block"
                digest = extend_digest(digest, int(self.pages[table[block], offset]))
        return digest


def sections_of(plan: StepPlan) -> Sections[np.ndarray]:
    return Sections._make(np.split(plan.buffer, np.cumsum(plan.sizes)[:-1]))
