"""The engine's guides: what compiles is kept, and what failed is tried again."""

from __future__ import annotations

import json
import os

import pytest

import every_guide
from octavo.guided.guides import GUIDE_BYTES, MOST_BYTES, Guides
from octavo.guided.trial import walk
from octavo.messages import GuideRequest
from octavo.testing.guided_samples import vocabulary
from octavo_registry import PluginHost
from server_faults import resident_mib


def test_a_failure_is_not_kept_and_a_guide_is(monkeypatch) -> None:
    compile_, calls = every_guide.Backend.compile, []

    def fails_once(self, constraint):
        calls.append(constraint.value)
        if len(calls) == 1:
            raise OSError("not now")
        return compile_(self, constraint)

    monkeypatch.setattr(every_guide.Backend, "compile", fails_once)
    guides = Guides(PluginHost.discover(plugins=["every_guide"]), vocabulary)
    request = GuideRequest(backend="near", kind="grammar", value='"quick"')
    assert "not now" in str(guides.guide(request).exception())
    guide = guides.guide(request).result().guide
    assert guides.guide(request).result().guide is guide
    assert calls == ["quick"] * 2
    guides.close()


def test_guides_are_kept_as_long_as_what_they_take_is_within_a_bound() -> None:
    guides = Guides(PluginHost.discover(plugins=["every_guide"]), vocabulary)
    small = [request(number, num_bytes=2**16) for number in range(3000)]
    for each in small:
        guides.guide(each)
    kept = MOST_BYTES // (2**16 + GUIDE_BYTES)
    assert kept - 2 < len(guides._guides) <= kept
    last = guides.guide(small[-1])
    assert guides.guide(small[-1]) is last
    large = guides.guide(request(0, num_bytes=MOST_BYTES))
    assert next(iter(guides._guides.values()))[0] is large
    assert guides.guide(small[-1]) is not last
    guides.close()


def request(number: int, *, num_bytes: int) -> GuideRequest:
    return GuideRequest(backend="near", kind="grammar", value=f'"{number}"', num_bytes=num_bytes)


@pytest.mark.slow
def test_memory_stays_bounded_over_many_small_guides_that_are_used() -> None:
    guides, words = Guides(PluginHost.discover(), vocabulary), vocabulary()

    def use(number: int) -> None:
        pattern = json.dumps(f"{number}[a-z]{{1,{number % 40 + 1}}}[0-9]+")
        one = GuideRequest(backend="llguidance", kind="regex", value=pattern)
        walk(guides.guide(one).result().guide.start(), words.vocab_size)

    use(0)
    before = resident_mib([os.getpid()])
    for number in range(1, 10_001):
        use(number)
    assert resident_mib([os.getpid()]) - before < 256
    guides.close()
