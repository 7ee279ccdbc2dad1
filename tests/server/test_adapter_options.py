"""What a server is told of adapters at its start: what cannot work is known before it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.config import LoRAConfig
from octavo.config.server import (
    AdapterConfig,
    ListenConfig,
    LoRAModule,
    ServerConfig,
    read_module,
)
from octavo.errors import ConfigError
from octavo.server.adapters import ServedAdapters


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["a"], "lora_modules='a' must be NAME=PATH"),
        (["=path"], "must be NAME=PATH"),
        (["{}"], "must be NAME=PATH"),
        (["{"], "is no JSON"),
        (['{"name": "a", "path": "b", "more": "c"}'], "must be NAME=PATH"),
        (["a=x", "a=y"], "two adapters named 'a'"),
    ],
)
def test_a_module_that_cannot_be_read_is_an_error_of_the_config(texts, words) -> None:
    with pytest.raises(ConfigError, match=words):
        AdapterConfig(lora_modules=tuple(texts))


def test_a_path_of_a_module_may_have_any_character() -> None:
    assert read_module("a=b=c") == LoRAModule(name="a", path="b=c")


@dataclass
class Stub:
    """An engine that takes adapters, or none; it is never asked for more."""

    enable_lora: bool
    adapters: Any = field(default_factory=SimpleNamespace)

    @property
    def config(self) -> Any:
        return SimpleNamespace(lora=LoRAConfig(enable_lora=self.enable_lora))


@pytest.mark.parametrize(
    ("config", "enable_lora", "words"),
    [
        (AdapterConfig(lora_modules=("a=b",)), False, "adapters need enable_lora"),
        (AdapterConfig(lora_dir=("/",)), False, "adapters need enable_lora"),
        (AdapterConfig(allow_runtime_lora=True), False, "adapters need enable_lora"),
        (AdapterConfig(lora_dir=("/no/such",)), True, "/no/such: .* must be folders"),
        (AdapterConfig(allowed_lora_path=("/no/such",)), True, "/no/such: .* must be folders"),
        (AdapterConfig(lora_modules=("base=/x",)), True, "'base' is the model's own name"),
    ],
)
def test_what_cannot_work_is_known_at_the_start(config, enable_lora, words) -> None:
    engine: Any = Stub(enable_lora)
    with pytest.raises(ConfigError, match=words):
        ServedAdapters(engine, config, ["base"]).start()


def test_changes_at_run_time_and_several_processes_do_not_go_together() -> None:
    adapters = AdapterConfig(allow_runtime_lora=True)
    with pytest.raises(ConfigError, match="with api_workers only one"):
        ServerConfig(adapters=adapters, listen=ListenConfig(api_workers=2))
