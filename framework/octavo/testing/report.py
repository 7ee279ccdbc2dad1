"""What the conformance kit found."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from octavo.wording import counted
from octavo_registry.faults import FAILURES, one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One property that was tried."""

    name: str
    passed: bool
    detail: str = ""
    """Why it failed, or what a pass does not claim."""


def tried(name: str, problems: Iterable[str]) -> Check:
    """The check of that name: it fails with the first problem, or with what finding one raised."""
    try:
        problem = next(iter(problems), None)
    except FAILURES as error:
        problem = f"raised {one_line(error)}"
    return Check(name=name, passed=problem is None, detail=problem or "")


def unclaimed(name: str, reason: str) -> Check:
    """A check that could not be made, which the report says."""
    return Check(name=name, passed=True, detail=f"not claimed: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All checks of one plugin."""

    plugin: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed, and there was one at least."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    def as_text(self) -> str:
        """Render a line for each check and a last line with the verdict."""
        lines = [
            f"{'ok  ' if check.passed else 'FAIL'} {check.name}"
            + (f": {check.detail}" if check.detail else "")
            for check in self.checks
        ]
        failed = sum(not check.passed for check in self.checks)
        verdict = "passed" if self.passed else "FAILED"
        checks = counted(len(self.checks), "check")
        lines.append(f"{self.plugin}: {verdict}, {checks}, {failed} failed")
        return "\n".join(lines)

    def as_json(self) -> str:
        """Render for machines: plugin, passed, checks."""
        return json.dumps({**asdict(self), "passed": self.passed}, indent=2)
