"""A device made of numpy that proves what the scheduler plans.

Instead of keys and values it stores, for each token, a digest of the whole prefix up to it. So it
sees any wrong block: a stale one, a missing copy, a wrong slot, a prefix hit on other content. It
draws each next token from the prefix's digest, so that any schedule must give the same tokens. What
the plan says of parameters it compares with those that the slot's sequence brought.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import numpy as np

from octavo.cache.groups import CacheLayout
from octavo.cache.prefix import first_visible
from octavo.messages import MediaInput, TokenSampling
from octavo.steps.features import RowFeature
from octavo.steps.layout import StateLayout
from octavo.steps.plan import LogprobArrays, Sections, StepPlan, StepResult, TokenMasks
from shadow_automata import ShadowAutomata
from shadow_step import ShadowStep

MASK = 2**63 - 1


def first_digest(adapter: str) -> int:
    """An adapter makes other keys and values of the same tokens."""
    return extend_digest(0, int.from_bytes(adapter.encode())) if adapter else 0


def extend_digest(digest: int, token: int) -> int:
    return hash((digest, token)) & MASK


def next_token(
    digest: int, seed: int, vocab_size: int, bias: float, banned: Collection[int]
) -> int:
    """A sequence's parameters change its tokens: the bias as a number, bans as what they are."""
    token = hash((digest, seed, bias)) % vocab_size
    while token in banned:
        token = (token + 1) % vocab_size
    return token


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


def logprobs_of(token_ids: list[int], places: list[int], count: int) -> LogprobArrays | None:
    """Arrays that say whose they are: ids count up from the chosen one, ranks are the places."""
    if count < 0:
        return None
    ids_R1 = np.array(token_ids, np.int32)[:, None]
    return LogprobArrays(
        token_ids=ids_R1 + np.arange(count + 1, dtype=np.int32),
        logprobs=-(ids_R1 + np.arange(count + 1, dtype=np.float32)),
        ranks=np.array(places, np.int32),
    )


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
    ) -> None:
        self.layout = layout
        self.state = state
        self.vocab_size = vocab_size
        self.arena = np.zeros(state.num_words, np.int32)
        most_tokens = max(group.block_tokens for group in layout.groups)
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
        self.attached: dict[int, TokenSampling] = {}
        """Parameters by slot, as the runner keeps them."""
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
        parts = sections_of(plan)
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
            assert self.broken or is_all or slot in self.attached
            self.attached.pop(slot, None)
        for new in plan.attach:
            assert self.broken or new.slot not in self.attached or not self._has_processors
            self.attached[new.slot] = new.sampling
            if self._has_processors and not self.broken:
                known = self.field("tokens")[new.slot, : self.field("num_tokens")[new.slot]]
                assert new.tokens.tolist() == known.tolist()
        slots, starts = parts.slots, parts.query_starts
        assert len(np.unique(slots)) == len(slots)
        computed, tokens = self.field("computed"), self.field("tokens")
        counts = np.diff(starts)
        assert (counts == plan.query_lens).all()
        assert self.broken or (computed[slots] + counts == plan.context_lens).all()
        assert plan.num_tokens == starts[-1]
        assert plan.num_rows == len(slots)
        assert plan.num_rows or len(parts.held), "a step for nothing"
        if self._has_processors and not self.broken:
            assert set(slots.tolist()) <= set(self.attached)
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
        digests = [
            self._run_row(int(slot), int(count)) for slot, count in zip(slots, counts, strict=True)
        ]
        prompt_logprobs = self._prompt_logprobs(plan, parts)
        return partial(self._draw_rows, plan, parts, digests, prompt_logprobs, self.broken)

    def _fail_when_it_is_time(self) -> None:
        self.steps_to_fault -= 1
        if self.steps_to_fault == -1:
            raise RuntimeError("the device has failed once")

    def _draw_rows(
        self,
        plan: StepPlan,
        parts: Sections[np.ndarray],
        digests: list[int],
        prompt_logprobs: LogprobArrays | None,
        broken: bool,
        masks: TokenMasks | None,
    ) -> StepResult:
        slots, starts = parts.slots, parts.query_starts
        counts = np.diff(starts)
        computed, tokens = self.field("computed"), self.field("tokens")
        if broken:  # what stands in the arena may be anything
            self.held.clear()
            garbage = np.zeros((len(plan.features), 1), np.int32)
            return StepResult(tokens_RK=garbage, prompt_logprobs=prompt_logprobs)
        drawn, places = list[int](), list[int]()
        row_of = {int(slot): row for row, slot in enumerate(slots)}
        num_tokens = self.field("num_tokens")
        assert plan.masked == any(map(self.automata.has, parts.sample_slots))
        first_held = len(parts.sample_slots) - len(parts.held)
        put_off = set() if masks is None else set(masks.put_off_P.tolist())
        for at, slot in enumerate(parts.sample_slots.tolist()):
            row = row_of.get(slot)
            end = computed[slot] + (0 if row is None else counts[row])
            assert end == num_tokens[slot], "draws before its last token"
            assert (row is None) == (at >= first_held), "a token is run again"
            if row is None:
                digest = self.held[parts.held[at - first_held]]
            else:
                digest = digests[row]
                assert parts.logit_tokens[at] == starts[row + 1] - 1
            if at in parts.family_rows:
                self.held[slot + self.state.num_slots] = digest
            if at in put_off:
                self.held[slot] = digest
            allowed = None if masks is None else _allowed(masks, at)
            if self.automata.has(slot):
                assert allowed is None, "the host masks a row that the device masks"
                allowed = self.automata.allowed(slot)
            drawn.append(self._draw(slot, digest, int(plan.features[at]), allowed))
            if self.automata.has(slot):
                self.automata.walk(slot, drawn[-1])
            places.append(int(num_tokens[slot]))
            tokens[slot, num_tokens[slot]] = drawn[-1]
            num_tokens[slot] += 1
        assert len(plan.features) == len(drawn)
        computed[slots] += counts
        return StepResult(
            tokens_RK=np.array(drawn, np.int32)[:, None],
            logprobs=logprobs_of(drawn, places, plan.num_logprobs),
            prompt_logprobs=prompt_logprobs,
        )

    def _draw(self, slot: int, digest: int, planned_features: int, allowed: set[int] | None) -> int:
        features = int(self.field("features")[slot])
        if self.field("num_tokens")[slot] >= self.field("min_len")[slot]:
            features &= ~RowFeature.MIN_TOKENS
        assert planned_features == features, "the host plans another row's work"
        banned = self.field("stop_ids")[slot].tolist() if features & RowFeature.MIN_TOKENS else ()
        if allowed:  # a row that has ended may have none left: its draw is nobody's
            banned = set(range(self.vocab_size)) - allowed
        bias = 0.0
        if features & RowFeature.BIAS:
            bias = sum(self.attached[slot].logit_bias.values())
        seed = int(self.field("seed")[slot].copy().view(np.int64)[0])
        return next_token(digest, seed, self.vocab_size, bias, banned)

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

    def _run_row(self, slot: int, count: int) -> int:
        """Write the row's new tokens, then check all that its queries see; the last digest."""
        block_tokens = self.layout.block_tokens
        start = int(self.field("computed")[slot])
        tokens = self.field("tokens")[slot]
        digests = [self._heard(slot, first_digest(self._adapter(slot)))]
        for token in tokens[: start + count].tolist():
            digests.append(extend_digest(digests[-1], token))
        for index, group in enumerate(self.layout.groups):
            if group.spec.rows is not None:
                continue
            table = self.field(f"table{index}")[slot]
            end = min(start + count, len(table) * block_tokens) if self.broken else start + count
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
        return digests[-1]

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


def content_of(item: MediaInput) -> list[int]:
    """What stands for the rows of an item."""
    return [hash((int(item.content_hash), place)) & MASK for place in range(item.num_rows)]


def _allowed(masks: TokenMasks, place: int) -> set[int] | None:
    for row, bits_W in zip(masks.rows_M.tolist(), masks.bits_MW, strict=True):
        if row == place:
            bits = np.unpackbits(bits_W.view(np.uint8), bitorder="little")
            return set(np.flatnonzero(bits).tolist())
    return None
