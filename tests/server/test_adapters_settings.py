"""What an operator says of adapters: refused before the model is looked for."""

from __future__ import annotations

import pytest

from octavo.cli import main
from octavo.config.server import AdapterConfig


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--enable-lora", "--lora-modules", "a=/no/such"), "no adapter '/no/such'"),
        (("--enable-lora", "--lora-modules", "none=/tmp"), "is the model's own name"),
        (("--enable-lora", "--lora-dir", "/no/such"), "/no/such: lora_dir"),
        (("--lora-modules", "a=/tmp"), "adapters need enable_lora"),
    ],
)
def test_what_cannot_be_is_known_before_the_model_is_looked_for(flags, problem, capsys) -> None:
    assert main(["serve", "/no/model", "--served-model-name", "none", *flags]) == 2
    assert problem in capsys.readouterr().err


def test_the_environment_may_give_leave_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not AdapterConfig().takes_changes
    monkeypatch.setenv("OCTAVO_ALLOW_RUNTIME_LORA_UPDATING", "1")
    assert AdapterConfig().takes_changes
