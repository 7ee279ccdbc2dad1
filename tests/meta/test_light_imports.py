"""What must start fast imports nothing heavy, and does start fast."""

from __future__ import annotations

import resource
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

NOTHING_HEAVY = "heavy = {'torch', 'transformers'} & set(sys.modules); assert not heavy, heavy"


def python(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["octavo", "octavo_registry", "octavo.cli.entry"])
def test_importing_loads_no_torch(module) -> None:
    python(f"import sys, {module}\n{NOTHING_HEAVY}")


@pytest.mark.parametrize("arguments", [["plugin", "list"], ["--help"]])
def test_the_command_line_loads_no_torch(arguments) -> None:
    python(f"import sys, octavo.cli\nassert octavo.cli.main({arguments}) == 0\n{NOTHING_HEAVY}")


def test_importing_any_built_in_plugin_loads_no_torch() -> None:
    modules = sorted(p.value for p in entry_points(group="octavo") if p.dist.name == "octavo")
    assert modules
    python(f"import sys\nfor module in {modules}: __import__(module)\n{NOTHING_HEAVY}")


def cpu_seconds(code: str) -> float:
    """Return a child's processor time, which other work on the machine hardly changes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    python(code)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(
    ("code", "limit_seconds"),
    [
        ("import octavo", 0.15),
        ("import octavo.cli; octavo.cli.main(['--help'])", 0.3),
    ],
)
def test_starting_takes_little_more_than_a_bare_interpreter(code, limit_seconds) -> None:
    rounds = [(cpu_seconds("pass"), cpu_seconds(code)) for _ in range(6)]
    bare, ours = map(min, zip(*rounds, strict=True))
    assert ours - bare < limit_seconds
