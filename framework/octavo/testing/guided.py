"""Checks of guided backends: their masks, steps back, forks and ends, and the texts they admit."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from octavo.errors import OctavoError
from octavo.guided.byte_automaton import automaton_guide, pack
from octavo.guided.schema.features import FEATURES
from octavo.testing.guided_samples import CALL, Sample, samples, vocabulary
from octavo.testing.report import Check
from octavo_registry import GuidedBackend, GuideState, GuideVocabulary
from octavo_registry.faults import FAILURES, one_line
from octavo_registry.guided import AutomatonBackend, Constraint, ConstraintKind, FillsTogether
from octavo_registry.lazy import former_members
from octavo_registry.naming import close_or_known
from octavo_registry.structure import Literal, plain

WALKS = 3
WALK_TOKENS = 24
READ_WALKS = 20
"""So many more are followed for the texts that they come to."""
TRIED_TOKENS = 12
"""So many allowed tokens of a state, and so many others, are tried on forks."""
_VALUES: dict[ConstraintKind, Any] = {
    "json": {"type": "boolean"},
    "regex": "a",
    "choice": ["a"],
    "grammar": 'start: "a"',
    "structure": plain(Literal("a")),
}


def check_guided_backend(
    title: str,
    make: Callable[[GuideVocabulary], GuidedBackend],
    keywords: Collection[str],
    *,
    native: bool = False,
    automata: bool = False,
) -> list[Check]:
    """Lead guides of all that ``keywords`` lists through texts and random walks."""
    words = vocabulary()
    backend = make(words)
    bench = _Bench(backend, words, samples(keywords), tuple(keywords))
    checks = [
        (f"{title} lists kinds and features that there are", bench.odd_keywords),
        (f"{title} refuses kinds that it does not list", bench.silences),
        (f"{title} admits the texts of its constraints and no others", bench.wrong_texts),
        (f"{title} masks what it accepts", bench.wrong_masks),
        (f"{title} gives no special token and no id beyond the vocabulary", bench.strays),
        (f"{title} ends where the text is complete", bench.wrong_ends),
        (f"{title} forces only what has no choice", bench.wrong_forced),
        (f"{title} goes back as it came", bench.wrong_rollbacks),
        (f"{title} has forks that are independent", bench.wrong_forks),
    ]
    if native:
        checks.append((f"{title} fills masks in several threads", bench.wrong_in_threads))
        checks.append((f"{title} fills masks of many as those of one", bench.wrong_together))
    if automata:
        checks.append((f"{title} makes automata that are its guides", bench.wrong_automata))
    return [_check(name, problems) for name, problems in checks]


def _check(name: str, problems: Callable[[], Iterator[str]]) -> Check:
    try:
        problem = next(problems(), None)
    except FAILURES as error:
        problem = f"raised {one_line(error)}"
    return Check(name=name, passed=problem is None, detail=problem or "")


@dataclass(frozen=True, slots=True)
class _Bench:
    backend: GuidedBackend
    words: GuideVocabulary
    samples: list[Sample]
    keywords: tuple[str, ...]
    found: dict[int, list[list[int]]] = field(default_factory=dict)
    """Token lists by their sample's place, once they are known."""

    def odd_keywords(self) -> Iterator[str]:
        kinds = get_args(ConstraintKind)
        known = [*kinds, *FEATURES]
        for name in self.keywords:
            if name not in known:
                yield f"keywords has {name!r}; {close_or_known(name, known)}"
        if not self.samples:
            yield f"keywords lists nothing that can be tried; kinds are {', '.join(kinds)}"

    def silences(self) -> Iterator[str]:
        for kind, value in _VALUES.items():
            if kind in self.keywords:
                continue
            try:
                self.backend.compile(Constraint(kind=kind, value=value))
            except OctavoError as error:
                if kind not in str(error):
                    yield f"{kind} is refused without its name: {error}"
            else:
                yield f"keywords does not list {kind!r}, and it is compiled"

    def wrong_texts(self) -> Iterator[str]:
        for sample in self.samples:
            for text in sample.valid:
                for tokens in self._spellings(text):
                    if problem := self._follow(sample, tokens):
                        yield f"{sample.name}: {text!r} {problem}"
            for text in sample.invalid:
                for tokens in self._spellings(text):
                    if not self._follow(sample, tokens):
                        yield f"{sample.name}: {text!r} is admitted"
            for place, tokens in self._walks(sample, READ_WALKS):
                walked = self._text(tokens)
                if place.is_complete() and walked is not None and not sample.admits(walked):
                    yield f"{sample.name}: {walked!r} is admitted"

    def wrong_masks(self) -> Iterator[str]:
        chance = random.Random(0)
        for sample, state, tokens in self._states():
            mask, forced = self._mask(state), state.forced()
            if forced and np.flatnonzero(mask).tolist() == forced[:1]:
                # Other tokens of the same text may be left out of the mask, and nothing else.
                mask[[t for t in range(self.words.vocab_size) if state.allowed(t)]] = True
            for token in range(self.words.vocab_size):
                if state.allowed(token) != mask[token]:
                    yield self._said(sample, tokens, token, "allowed()", not mask[token])
            yes, no = np.flatnonzero(mask), np.flatnonzero(~mask[: self.words.vocab_size])
            for some in (yes.tolist(), no.tolist()):
                for token in chance.sample(some, min(TRIED_TOKENS, len(some))):
                    if state.is_finished() and mask[token]:
                        continue  # a stop token, which nobody gives to a state that has ended
                    if state.fork().accept(token) != mask[token]:
                        yield self._said(sample, tokens, token, "accept()", not mask[token])
            if not mask.any():
                yield f"{sample.name}: after {self._shown(tokens)} no token is left"

    def strays(self) -> Iterator[str]:
        listed = len(self.words.token_bytes)
        for sample, state, tokens in self._states():
            may_call = CALL in str(sample.constraint.value) and not tokens
            mask = self._mask(state)
            for token in np.flatnonzero(mask).tolist():
                if token >= listed:
                    yield f"{sample.name}: id {token} is allowed, beyond the {listed} of the tokens"
                special = self.words.token_bytes[token] is None
                if special and token not in self.words.stop_token_ids and not may_call:
                    yield f"{sample.name}: special token {token} is allowed as text"
            if may_call and np.flatnonzero(mask).tolist() != [self.words.special_ids[CALL]]:
                yield f"{sample.name}: the literal {CALL} must be the special token"

    def wrong_ends(self) -> Iterator[str]:
        stops = list(self.words.stop_token_ids)
        for sample, state, tokens in self._states():
            mask, complete = self._mask(state), state.is_complete()
            if set(mask[stops]) != {complete}:
                yield (
                    f"{sample.name}: after {self._shown(tokens)} is_complete() is {complete} and "
                    f"stop tokens are {'not ' if complete else ''}allowed"
                )
            others = set(np.flatnonzero(mask).tolist()) - set(stops)
            if state.is_finished() != (complete and not others):
                yield (
                    f"{sample.name}: after {self._shown(tokens)} is_finished() is "
                    f"{state.is_finished()} and {len(others)} tokens may follow"
                )

    def wrong_forced(self) -> Iterator[str]:
        for sample, state, tokens in self._states():
            forced = state.forced()
            if not forced:
                continue
            where = f"{sample.name}: after {self._shown(tokens)} forced() is {forced}"
            ahead = state.fork()
            for token in forced:
                if any(map(ahead.allowed, self._others(forced))):
                    yield f"{where}, and the mask has a choice"
                if not ahead.accept(token):
                    yield f"{where}, and {token} is not accepted"
                forced = forced[1:]

    def wrong_rollbacks(self) -> Iterator[str]:
        for place, sample in enumerate(self.samples):
            for tokens in self._token_lists(place):
                state = self.backend.compile(sample.constraint).start()
                masks = [self._mask(state)]
                for token in tokens:
                    state.accept(token)
                    masks.append(self._mask(state))
                for num in (1, 2, 5):
                    size = len(tokens) - num
                    if size < 0:
                        continue
                    state.rollback(num)
                    if not np.array_equal(self._mask(state), masks[size]):
                        yield f"{sample.name}: {num} tokens back the mask is another"
                    for token in tokens[size:]:
                        if not state.accept(token):
                            yield f"{sample.name}: {num} tokens back {token} is refused"
                    if not np.array_equal(self._mask(state), masks[-1]):
                        yield f"{sample.name}: {num} tokens back and on again the mask is another"
                refused = np.flatnonzero(~masks[-1][: self.words.vocab_size]).tolist()
                if refused and (
                    state.accept(refused[-1]) or not np.array_equal(self._mask(state), masks[-1])
                ):
                    yield f"{sample.name}: a refused token is accepted or changes the mask"
                state.rollback(len(tokens))
                if not np.array_equal(self._mask(state), masks[0]):
                    yield f"{sample.name}: all tokens back the mask is not the first"

    def wrong_forks(self) -> Iterator[str]:
        for sample, state, tokens in self._states():
            mask = self._mask(state)
            fork = state.fork()
            token = int(np.flatnonzero(mask)[-1])
            if not np.array_equal(self._mask(fork), mask):
                yield f"{sample.name}: after {self._shown(tokens)} a fork's mask is another"
            if token in self.words.stop_token_ids:
                continue
            second = fork.fork()
            fork.accept(token)
            if not all(np.array_equal(self._mask(each), mask) for each in (state, second)):
                yield f"{sample.name}: a fork that accepts {token} changes the state it is of"
            second.rollback(len(tokens))
            if not np.array_equal(self._mask(state), mask):
                yield f"{sample.name}: a fork that goes back changes the state it is of"

    def wrong_in_threads(self) -> Iterator[str]:
        states = [state.fork() for _, state, _ in self._states()]
        masks = [self._mask(state) for state in states]
        with ThreadPoolExecutor(4) as threads:
            again = threads.map(self._mask, [state.fork() for state in states])
            if not all(map(np.array_equal, masks, again)):
                yield "masks that several threads fill are not those of one"

    def wrong_together(self) -> Iterator[str]:
        states = [state.fork() for _, state, _ in self._states()]
        if not states or not isinstance(states[0], FillsTogether):
            return
        rows_MW = np.full((len(states), (self.words.vocab_size + 31) // 32), 0x55555555, np.int32)
        errors = states[0].fill_bitmasks(states, rows_MW)
        for state, row_W, error in zip(states, rows_MW, errors, strict=True):
            if error is not None:
                yield f"fill_bitmasks() says {one_line(error)}, and fill_bitmask() nothing"
            elif not np.array_equal(self._mask(state), bits_of(row_W)):
                yield "fill_bitmasks() gives another mask than fill_bitmask()"

    def wrong_automata(self) -> Iterator[str]:
        """Automata must say the same as the backend, without which an engine has them."""
        if not isinstance(self.backend, AutomatonBackend):
            yield f"it has no automaton(){former_members(self.backend, {'automaton': 'automaton'})}"
            return
        for place, sample in enumerate(self.samples):
            packed = pack(self.backend.automaton(sample.constraint)).tobytes()
            for tokens in self._token_lists(place):
                first = automaton_guide(packed, self.words).start()
                second = self.backend.compile(sample.constraint).start()
                for token in tokens:
                    if not np.array_equal(self._mask(first), self._mask(second)):
                        yield f"{sample.name}: before {token} the automaton's mask is another"
                    first.accept(token)
                    second.accept(token)

    def _follow(self, sample: Sample, tokens: Sequence[int]) -> str:
        """What the guide has against tokens and the end behind them."""
        state = self.backend.compile(sample.constraint).start()
        for number, token in enumerate(tokens):
            if not state.accept(token):
                return f"is refused at its {number + 1}. token of {len(tokens)}"
        return "" if state.is_complete() else "is not complete at its end"

    def _states(self) -> Iterator[tuple[Sample, GuideState, list[int]]]:
        """States on the way, each to be left as it is, with the tokens before."""
        for place, sample in enumerate(self.samples):
            guide = self.backend.compile(sample.constraint)
            for tokens in self._token_lists(place):
                state = guide.start()
                for number, token in enumerate(tokens):
                    yield sample, state, tokens[:number]
                    if not state.accept(token):
                        break
                else:
                    yield sample, state, tokens

    def _token_lists(self, place: int) -> list[list[int]]:
        """What the sample at this place is led through: its texts, and random walks."""
        if place not in self.found:
            sample = self.samples[place]
            texts = [tokens for text in sample.valid for tokens in self._spellings(text)]
            self.found[place] = texts + [tokens for _, tokens in self._walks(sample, WALKS)]
        return self.found[place]

    def _walks(self, sample: Sample, num: int) -> Iterator[tuple[GuideState, list[int]]]:
        """States at the end of random walks, with their tokens."""
        chance = random.Random(0)
        guide = self.backend.compile(sample.constraint)
        for _ in range(num):
            state, tokens = guide.start(), list[int]()
            while len(tokens) < WALK_TOKENS and not state.is_finished():
                found = set(np.flatnonzero(self._mask(state)).tolist())
                choices = sorted(found - set(self.words.stop_token_ids))
                if not choices:
                    break
                token = chance.choice(choices)
                if not state.accept(token):
                    break
                tokens.append(token)
            yield state, tokens

    def _spellings(self, text: str) -> Iterator[list[int]]:
        """The tokens of a text: as few as there are, and one for each byte."""
        pieces = re.split(f"({re.escape(CALL)})", text)
        special = self.words.special_ids
        first = self.words.token_bytes.index(b"\0")
        for encode in (self.words.encode, lambda piece: [first + byte for byte in piece.encode()]):
            yield [
                token
                for piece in pieces
                for token in ([special[CALL]] if piece == CALL else encode(piece))
            ]

    def _mask(self, state: GuideState) -> NDArray[np.bool_]:
        """The tokens that a mask allows, with the bits that are no token's."""
        row = np.full((self.words.vocab_size + 31) // 32, 0x55555555, np.int32)  # to be cleared
        state.fill_bitmask(row)
        return bits_of(row)

    def _others(self, forced: Sequence[int]) -> Iterator[int]:
        """Tokens that neither begin with the forced text nor are a beginning of it."""
        pieces = self.words.token_bytes
        text = b"".join(pieces[each] or b"" for each in forced)
        for other in range(self.words.vocab_size):
            piece = pieces[other] if other < len(pieces) else None
            is_alike = piece is not None and (
                text.startswith(piece) or (piece.startswith(text) and text != b"")
            )
            if other != forced[0] and not is_alike:
                yield other

    def _text(self, tokens: Sequence[int]) -> str | None:
        texts = {token: text.encode() for text, token in self.words.special_ids.items()}
        joined = b"".join(self.words.token_bytes[each] or texts.get(each, b"") for each in tokens)
        try:
            return joined.decode()
        except UnicodeDecodeError:
            return None

    def _said(
        self, sample: Sample, tokens: Sequence[int], token: int, call: str, said: bool
    ) -> str:
        return (
            f"{sample.name}: after {self._shown(tokens)} {call} of token {token} is {said}, "
            f"and the mask says {not said}"
        )

    def _shown(self, tokens: Sequence[int]) -> str:
        return repr(self._text(tokens) or list(tokens)) if tokens else "nothing"


def bits_of(row: NDArray[np.int32]) -> NDArray[np.bool_]:
    """A mask's words as one entry a token."""
    return np.unpackbits(row.view(np.uint8), bitorder="little").astype(bool)
