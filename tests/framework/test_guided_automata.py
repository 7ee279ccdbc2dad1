"""Who is given an automaton: where the device walks them, by name; and otherwise the next."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from octavo import GuidedParams
from octavo.errors import PluginError, UnsupportedConstraint
from octavo.guided.byte_automaton import (
    ByteAutomatonGuide,
    ByteAutomatonGuideState,
    automaton_guide,
    pack,
)
from octavo.guided.checking import GuideChecker
from octavo.guided.choose import choose_guide, first_that_compiles, remembering_choice
from octavo.guided.guides import GUIDE_BYTES, CompilingRequests, Guides
from octavo.guided.schema.regex import TooManyStates
from octavo.guided.sequence import CompiledGuide
from octavo.messages import EngineRequest, GuideRequest, TokenSampling
from octavo.testing.guided_samples import vocabulary
from octavo_plugins.guided.automaton import backend
from octavo_plugins.guided.automaton.backend import Backend
from octavo_plugins.guided.llguidance import backend as llguidance
from octavo_registry import PluginHost
from octavo_registry.guided import Constraint

WORD = GuidedParams(choice=["yes", "no"])
TOO_LONG = GuidedParams(json={"type": "string", "maxLength": 10**9})
GRAMMAR = GuidedParams(grammar='start: "a"')


@pytest.fixture(scope="module")
def host() -> PluginHost:
    return PluginHost.discover()


def test_a_device_that_walks_automata_is_given_one(host: PluginHost) -> None:
    request = choose_guide(WORD, host, on_device=True)
    assert (request.backend, request.kind) == ("automaton", "choice")
    expected = pack(Backend.automaton(Constraint(kind="choice", value=["yes", "no"])))
    assert len(request.automaton) == 4 * len(expected)
    state = automaton_guide(request.automaton, vocabulary()).start()
    assert all(map(state.accept, vocabulary().encode("yes")))
    assert state.is_finished()


def test_without_such_a_device_the_next_backend_is_taken(host: PluginHost) -> None:
    request = choose_guide(WORD, host)
    assert (request.backend, request.automaton) == ("llguidance", b"")


def test_a_backend_of_automata_works_anywhere_by_its_name(host: PluginHost) -> None:
    request = choose_guide(GuidedParams(choice=["yes"], backend="automaton"), host)
    assert request.backend == "automaton"
    assert request.automaton


@pytest.mark.parametrize("params", [TOO_LONG, GRAMMAR], ids=["too long", "a grammar"])
def test_what_is_no_automaton_is_for_the_next_backend(host: PluginHost, params) -> None:
    request = choose_guide(params, host, on_device=True)
    assert (request.backend, request.automaton) == ("llguidance", b"")


def test_by_name_the_reason_is_told(host: PluginHost) -> None:
    params = GuidedParams(json={"type": "string", "maxLength": 10**9}, backend="automaton")
    with pytest.raises(UnsupportedConstraint, match=r"automaton: .* too large for a table"):
        choose_guide(params, host, on_device=True)
    with pytest.raises(UnsupportedConstraint, match="automaton lacks grammar"):
        choose_guide(GuidedParams(grammar='start: "a"', backend="automaton"), host)


def test_a_backend_that_breaks_is_named(host: PluginHost, monkeypatch) -> None:
    def breaks(constraint: Constraint) -> None:
        raise RuntimeError("no more")

    monkeypatch.setattr(Backend, "automaton", staticmethod(breaks))
    with pytest.raises(
        PluginError, match="'guided_automaton' failed in guided backend 'automaton'"
    ):
        choose_guide(WORD, host, on_device=True)


def test_a_choice_is_remembered_with_its_automaton(host: PluginHost, monkeypatch) -> None:
    choose = remembering_choice(host, on_device=True)
    first = choose(WORD)
    monkeypatch.delattr(Backend, "automaton")
    assert choose(GuidedParams(choice=["yes", "no"])) is first


def test_an_engine_makes_the_guide_without_the_backend(host: PluginHost) -> None:
    request = choose_guide(WORD, host, on_device=True)
    guides = Guides(host, vocabulary)
    guide = guides.guide(request).result().guide
    assert isinstance(guide, ByteAutomatonGuide)
    assert guides.guide(request).result().guide is guide
    assert not guides._native
    assert guides._num_bytes == GUIDE_BYTES + len(request.value) + 2 * len(request.automaton)
    guides.close()


def test_children_that_check_constraints_make_automata_for_a_device(host: PluginHost) -> None:
    for on_device, expected in ((True, "automaton"), (False, "llguidance")):
        checker = GuideChecker(host.manifest(), vocabulary, on_device=on_device)
        try:
            request = checker.check(WORD)
            assert request.backend == expected
            assert bool(request.automaton) == on_device
            assert checker.check(WORD) is request
            assert checker.check(TOO_LONG).backend == "llguidance"
            assert checker.check(GRAMMAR).backend == "llguidance"
        finally:
            checker.close()


def test_what_takes_too_long_as_an_automaton_is_for_the_next_backend() -> None:
    host = PluginHost.discover(plugins=["slow_automaton"])
    checker = GuideChecker(host.manifest(), vocabulary, on_device=True)
    try:
        assert checker.check(WORD).backend == "llguidance"
        with pytest.raises(UnsupportedConstraint, match="is too large to compile: it was given up"):
            checker.check(GuidedParams(choice=["yes", "no"], backend="mill"))
    finally:
        checker.close()


def test_a_copy_compiles_many_constraints_and_another_follows_one_that_died() -> None:
    checker = GuideChecker(PluginHost.discover(plugins=["slow_automaton"]).manifest(), vocabulary)

    def copies() -> list[str]:
        pids = [child.pid for child in checker._pool._children]
        return [Path(f"/proc/{pid}/task/{pid}/children").read_text() for pid in pids]

    try:
        checker.check(WORD)  # after which the child learns what copies know from then on
        checker.check(GuidedParams(regex="[fg]"))
        first = copies()
        for number in range(5):
            checker.check(GuidedParams(regex=f"[a-c]{number}"))
        assert copies() == first
        with pytest.raises(UnsupportedConstraint, match="it was given up"):
            checker.check(GuidedParams(choice=["yes", "no"], backend="mill"))
        checker.check(GuidedParams(regex="[de]"))
        assert copies() != first
    finally:
        checker.close()


def test_what_a_backend_refuses_when_it_compiles_is_for_the_next(
    host: PluginHost, monkeypatch
) -> None:
    def refuses(backend: object, constraint: Constraint) -> None:
        raise UnsupportedConstraint("not this one")

    monkeypatch.setattr(llguidance.Backend, "compile", refuses)
    request = choose_guide(WORD, host)
    assert request.backend == "llguidance"
    assert request.others[-1] == "automaton"
    asked = structs.replace(request, others=("automaton",))
    guides = Guides(host, vocabulary)
    compiled = guides.guide(asked).result()
    guides.close()
    assert isinstance(compiled.guide, ByteAutomatonGuide)
    assert compiled.backend == "automaton"

    def refused(one: GuideRequest) -> None:
        raise UnsupportedConstraint("nor this")

    with pytest.raises(UnsupportedConstraint, match="llguidance: nor this; automaton: nor this"):
        first_that_compiles(asked, refused, host)


def test_an_automaton_that_no_token_satisfies_is_refused_by_the_children(host: PluginHost) -> None:
    words = vocabulary()
    few = type(words)(
        token_bytes=[None, b"a", b"b"],
        special_ids={},
        stop_token_ids=(0,),
        vocab_size=3,
        encode=lambda text: [],
    )
    checker = GuideChecker(host.manifest(), lambda: few, on_device=True)
    try:
        with pytest.raises(UnsupportedConstraint, match="no text satisfies the choice"):
            checker.check(GuidedParams(choice=["c"]))
    finally:
        checker.close()


def test_a_request_by_name_alone_is_compiled_in_the_engine(host: PluginHost) -> None:
    guides = Guides(host, vocabulary)
    request = GuideRequest(backend="automaton", kind="regex", value=json.dumps("[ab]+"))
    state = guides.guide(request).result().guide.start()
    assert isinstance(state, ByteAutomatonGuideState)
    row = np.zeros((vocabulary().vocab_size + 31) // 32, np.int32)
    state.fill_bitmask(row)
    assert row.any()
    guides.close()


def test_a_request_that_waits_does_not_hold_its_automaton(host: PluginHost) -> None:
    asked = choose_guide(WORD, host, on_device=True)
    compiling = CompilingRequests(Guides(host, vocabulary))
    try:
        for number in (1, 2):
            request = EngineRequest(
                request_id=str(number),
                sequences=(number,),
                prompt_token_ids=[1],
                sampling=TokenSampling(seed=0, temperature=0.0, max_tokens=1),
                guide=asked,
            )
            compiling.add(request, asked)
        found = [each for _ in range(2) for each in compiling.take(30)]
    finally:
        compiling.close()
    assert [request.guide.automaton for request, _ in found if request.guide] == [b"", b""]
    (_, first), (_, second) = found
    assert isinstance(first, CompiledGuide)
    assert isinstance(second, CompiledGuide)
    assert isinstance(first.guide, ByteAutomatonGuide)
    assert first.guide is second.guide


def test_too_many_states_anywhere_are_no_fault_of_the_backend(monkeypatch) -> None:
    def too_many(*_: object) -> None:
        raise TooManyStates

    monkeypatch.setattr(backend, "automaton_of", too_many)
    with pytest.raises(UnsupportedConstraint, match="too many states"):
        Backend.automaton(Constraint(kind="choice", value=["yes"]))
