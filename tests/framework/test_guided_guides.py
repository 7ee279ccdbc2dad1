"""The engine's guides: what compiles is kept, and what failed is tried again."""

from __future__ import annotations

import every_guide
from octavo.engine.messages import GuideRequest
from octavo.guided.guides import Guides
from octavo.testing.guided_samples import vocabulary
from octavo_registry import PluginHost


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
    assert guides._num_chars == len(request.value)
    guides.close()
