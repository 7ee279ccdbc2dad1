"""The scripts of docs/python.md run as they stand there, one behind the other."""

from __future__ import annotations

import pytest

from markdown import ROOT, code_blocks

PAGE = ROOT / "docs" / "python.md"
PRINTED = (
    "The capital of Spain is Madrid\nThe capital of France is Paris\n",
    " Paris\n Madrid\n",
    "octavo/tiny 8 16\n",
)


@pytest.mark.parametrize(
    ("script", "printed"), [*zip(code_blocks(PAGE, "python"), PRINTED, strict=True)]
)
def test_a_script_runs(script: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(script, str(PAGE), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == printed
