"""The kit must fail guided backends that are wrong: each mutant here breaks one thing."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from octavo.guided.byte_automaton import ByteAutomatonGuide
from octavo.guided.schema import FEATURES
from octavo.testing.guided import check_guided_backend
from octavo_plugins.guided.automaton.backend import Backend as Automaton
from octavo_plugins.guided.llguidance.backend import Backend, Guide, State
from octavo_registry import OctavoError
from octavo_registry.guided import Constraint

KINDS = ("json", "regex", "choice", "grammar", "structure")
KEYWORDS = ("choice", "regex")


def failures(make, keywords=KEYWORDS) -> dict[str, str]:
    checks = check_guided_backend("it", make, keywords, native=True)
    return {check.name: check.detail for check in checks if not check.passed}


def flip(row, token: int, *, on: bool) -> None:
    words = row.view(np.uint32)
    words[token // 32] = words[token // 32] & ~np.uint32(1 << token % 32)
    words[token // 32] |= np.uint32(on << token % 32)


class Mutant(State):
    """A state, at the end of a chain that no method shortens; ``past`` are its tokens."""

    def __init__(self, inner: State, past=()) -> None:
        super().__init__(inner._guide, inner._family, inner._matcher, inner._tokens)
        self.past = list(past)

    def fork(self):
        return type(self)(super().fork(), self.past)

    def accept(self, token: int) -> bool:
        accepted = super().accept(token)
        self.past += [token] * accepted
        return accepted

    def rollback(self, num_tokens: int) -> None:
        super().rollback(num_tokens)
        del self.past[len(self.past) - num_tokens :]


class MaskAddsAToken(Mutant):
    def fill_bitmask(self, row) -> None:
        super().fill_bitmask(row)
        if self.past:
            flip(row, 4 + ord("!"), on=True)


class MaskLeavesBitsAsTheyWere(Mutant):
    def fill_bitmask(self, row) -> None:
        before = row.copy()
        super().fill_bitmask(row)
        row |= before


class MaskDropsAToken(Mutant):
    def fill_bitmask(self, row) -> None:
        super().fill_bitmask(row)
        if not self.forced():
            flip(row, 4 + ord("-"), on=False)


class MaskReachesBeyondTheTokens(Mutant):
    def fill_bitmask(self, row) -> None:
        super().fill_bitmask(row)
        flip(row, 32 * len(row) - 1, on=True)


class MixesUpWhoseMaskIsWhose(Mutant):
    def fill_bitmasks(self, states, rows_MW):
        return super().fill_bitmasks(states[::-1], rows_MW)


class AllowsWhatItDoesNotAccept(Mutant):
    def allowed(self, token: int) -> bool:
        return super().allowed(token) or token == 4 + ord("?")


class AcceptsAnything(Mutant):
    def accept(self, token: int) -> bool:
        return super().accept(token) or token == 4 + ord("?")


class RefusedTokensChangeIt(Mutant):
    def accept(self, token: int) -> bool:
        if not super().accept(token):
            super().rollback(min(1, len(self.past)))
            return False
        return True


class GoesBackTooLittle(Mutant):
    def rollback(self, num_tokens: int) -> None:
        super().rollback(num_tokens - 1)


class ForksAreTheSame(Mutant):
    def fork(self):
        return self


class ForksBeginAnew(Mutant):
    def fork(self):
        fork = super().fork()
        fork.rollback(len(fork.past))
        return fork


class EndsAnywhere(Mutant):
    def is_complete(self) -> bool:
        return True


class NeverFinishes(Mutant):
    def is_finished(self) -> bool:
        return False


class FinishesWhereMoreMayFollow(Mutant):
    def is_finished(self) -> bool:
        return self.is_complete()


class ForcesAChoice(Mutant):
    def forced(self) -> list[int]:
        row = np.zeros(11, np.int32)
        self.fill_bitmask(row)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        return [int(bits.argmax())]


class ForcesWhatIsRefused(Mutant):
    def forced(self) -> list[int]:
        found = super().forced()
        return [*found, 4 + ord("?")] if found else []


FOUND_BY = {
    MaskAddsAToken: "masks what it accepts",
    MaskLeavesBitsAsTheyWere: "masks what it accepts",
    MaskDropsAToken: "masks what it accepts",
    MaskReachesBeyondTheTokens: "gives no special token and no id beyond the vocabulary",
    MixesUpWhoseMaskIsWhose: "fills masks of many as those of one",
    AllowsWhatItDoesNotAccept: "masks what it accepts",
    AcceptsAnything: "masks what it accepts",
    RefusedTokensChangeIt: "goes back as it came",
    GoesBackTooLittle: "goes back as it came",
    ForksAreTheSame: "has forks that are independent",
    ForksBeginAnew: "has forks that are independent",
    EndsAnywhere: "ends where the text is complete",
    NeverFinishes: "ends where the text is complete",
    FinishesWhereMoreMayFollow: "ends where the text is complete",
    ForcesAChoice: "forces only what has no choice",
    ForcesWhatIsRefused: "forces only what has no choice",
}


def with_states(mutant):
    class MutantGuide(Guide):
        def start(self):
            return mutant(super().start())

    class MutantBackend(Backend):
        def compile(self, constraint):
            guide = super().compile(constraint)
            return MutantGuide(guide._make, guide.stop_token_ids, guide.executor)

    return MutantBackend


@pytest.mark.parametrize(
    "keywords",
    [("choice",), pytest.param((*KINDS, *FEATURES), marks=pytest.mark.slow)],
    ids=["few", "all"],
)
def test_a_sound_backend_passes(keywords) -> None:
    class Some(Backend):
        def compile(self, constraint):
            if constraint.kind not in keywords:
                raise OctavoError(f"{constraint.kind} cannot be enforced")
            return super().compile(constraint)

    assert failures(Some, keywords) == {}


def test_what_mutants_have_in_common_is_sound() -> None:
    assert list(failures(with_states(Mutant))) == ["it refuses kinds that it does not list"]


@pytest.mark.parametrize("mutant", FOUND_BY, ids=lambda mutant: mutant.__name__)
def test_a_state_that_is_wrong_is_found(mutant) -> None:
    assert f"it {FOUND_BY[mutant]}" in failures(with_states(mutant))


def test_a_backend_that_enforces_something_else_is_found() -> None:
    class Loose(Backend):
        def compile(self, constraint):
            value = constraint.value
            if constraint.kind == "choice":
                value = [*value, "other"]
            return super().compile(type(constraint)(kind=constraint.kind, value=value))

    detail = failures(Loose, ("choice", "regex"))[
        "it admits the texts of its constraints and no others"
    ]
    assert "'other' is admitted" in detail


def test_a_backend_that_refuses_a_valid_text_is_found() -> None:
    class Strict(Backend):
        def compile(self, constraint):
            value = constraint.value[1:] if constraint.kind == "choice" else constraint.value
            return super().compile(type(constraint)(kind=constraint.kind, value=value))

    detail = failures(Strict, ("choice",))["it admits the texts of its constraints and no others"]
    assert "'yes' is not complete at its end" in detail


def test_special_tokens_that_pass_as_text_are_found() -> None:
    class Spelled(Backend):
        def __init__(self, vocabulary) -> None:
            texts = {token: text.encode() for text, token in vocabulary.special_ids.items()}
            tokens = [
                each if token in (0, 1) else texts.get(token, each)
                for token, each in enumerate(vocabulary.token_bytes)
            ]
            loose = type(vocabulary)(
                token_bytes=tokens,
                special_ids={},
                stop_token_ids=vocabulary.stop_token_ids,
                vocab_size=vocabulary.vocab_size,
                encode=vocabulary.encode,
            )
            super().__init__(loose)

    assert "it gives no special token and no id beyond the vocabulary" in failures(Spelled, KINDS)


def test_a_kind_that_is_taken_and_not_listed_is_found() -> None:
    detail = failures(Backend, ("choice",))["it refuses kinds that it does not list"]
    assert detail == "keywords does not list 'json', and it is compiled"


def test_keywords_that_do_not_exist_are_found() -> None:
    title = "it lists kinds and features that there are"
    assert (
        "keywords has 'minItem'; close: ['minItems'"
        in failures(Backend, (*KINDS, "minItem"))[title]
    )
    assert "nothing that can be tried" in failures(Backend, ())[title]


def test_native_masks_that_get_mixed_up_in_threads_are_found() -> None:
    class Shared(Mutant):
        scratch = np.zeros(11, np.int32)

        def fill_bitmask(self, row) -> None:
            super().fill_bitmask(self.scratch)
            if threading.current_thread() is not threading.main_thread():
                time.sleep(0.001)  # another thread's turn
            row[:] = self.scratch

    assert "it fills masks in several threads" in failures(with_states(Shared), ("choice",))


def test_a_backend_that_raises_is_a_failed_check_and_no_exception() -> None:
    class Raising(Mutant):
        def fill_bitmask(self, row) -> None:
            raise RuntimeError("no more")

    found = failures(with_states(Raising), ("choice",))
    assert "raised RuntimeError: no more" in found["it masks what it accepts"]


class OtherAutomata(Automaton):
    """Sends to the engine another automaton than it compiles."""

    def compile(self, constraint):
        return ByteAutomatonGuide(Automaton.automaton(constraint), self._vocabulary)

    @staticmethod
    def automaton(constraint):
        return Automaton.automaton(Constraint(kind="choice", value=["else"]))


@pytest.mark.parametrize("make", [Backend, OtherAutomata], ids=["none", "others"])
def test_automata_that_are_not_the_guides_are_found(make) -> None:
    checks = check_guided_backend("it", make, KEYWORDS, native=True, automata=True)
    assert "it makes automata that are its guides" in {
        each.name for each in checks if not each.passed
    }
