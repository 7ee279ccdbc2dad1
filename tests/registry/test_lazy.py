from __future__ import annotations

import logging
import sys

import pytest

from octavo_registry import (
    DuplicateNameError,
    LazyRegistry,
    ModelCapabilities,
    PluginError,
    UnknownNameError,
)


class Here:
    pass


HERE = f"{__name__}:Here"


def models() -> LazyRegistry[object]:
    return LazyRegistry("model", capabilities=ModelCapabilities())


def test_a_target_is_imported_when_loaded_and_not_before(site) -> None:
    site.write("far_away", "class Thing: pass")
    registry = models()
    registry.add("Thing", "far_away:Thing")
    assert registry.info("Thing").target == "far_away:Thing"
    assert "far_away" not in sys.modules
    thing = registry.load("Thing")
    assert thing is sys.modules["far_away"].Thing
    assert registry.load("Thing") is thing


def test_an_unknown_name_lists_near_matches() -> None:
    registry = models()
    registry.add("Qwen3ForCausalLM", HERE)
    with pytest.raises(UnknownNameError) as error:
        registry.load("Qwen3ForCausaLM")
    assert str(error.value) == "no model named 'Qwen3ForCausaLM'; close: ['Qwen3ForCausalLM']"


def test_an_unknown_name_without_near_matches_lists_all() -> None:
    registry = models()
    registry.add("B", HERE)
    registry.add("A", HERE)
    with pytest.raises(UnknownNameError, match=r"no model named 'xyz'; known: \['A', 'B'\]"):
        registry.info("xyz")


def test_another_target_for_a_name_is_an_error_that_names_both_plugins() -> None:
    registry = models()
    registry.plugin = "first"
    registry.add("Llama", HERE)
    registry.plugin = "second"
    with pytest.raises(DuplicateNameError, match=r"'Llama'.*'first'.*'second'.*'other:Thing'"):
        registry.add("Llama", "other:Thing")
    assert registry.info("Llama").plugin == "first"


def test_the_same_target_again_is_no_error() -> None:
    registry = models()
    registry.add("Llama", HERE)
    registry.add("Llama", HERE)
    assert registry.names() == ["Llama"]


@pytest.mark.parametrize("replacing_first", [True, False])
def test_replace_counts_in_either_order_and_is_logged(replacing_first, caplog) -> None:
    registry = models()
    steps = [("builtin", "other:Thing", False), ("override", HERE, True)]
    with caplog.at_level(logging.INFO):
        for plugin, target, replace in reversed(steps) if replacing_first else steps:
            registry.plugin = plugin
            registry.add("Llama", target, replace=replace)
    assert registry.load("Llama") is Here
    assert "plugin 'override' replaces other:Thing of plugin 'builtin'" in caplog.text


def test_withdrawing_a_plugin_brings_back_what_it_replaced() -> None:
    registry = models()
    registry.plugin = "builtin"
    registry.add("Llama", "other:Thing")
    registry.plugin = "override"
    registry.add("Llama", HERE, replace=True)
    registry.add("Extra", HERE)
    registry.withdraw("override")
    assert registry.names() == ["Llama"]
    assert registry.info("Llama").plugin == "builtin"


@pytest.mark.parametrize("target", ["no_colon", "a.b:", ":Attr", "a b:C", "a.b:C.d", 3])
def test_a_malformed_target_is_refused_where_it_is_added(target) -> None:
    registry = models()
    registry.plugin = "odd"
    with pytest.raises(PluginError, match=r"plugin 'odd' adds model 'X' with target"):
        registry.add("X", target)


def test_metadata_is_typed_and_has_defaults() -> None:
    registry = models()
    registry.add("Plain", HERE)
    registry.add("Lora", HERE, capabilities=ModelCapabilities(lora=True))
    assert registry.info("Plain").metadata["capabilities"] == ModelCapabilities()
    assert registry.info("Lora").metadata["capabilities"].lora
    with pytest.raises(PluginError, match="capability=; close: \\['capabilities'\\]"):
        registry.add("X", HERE, capability=ModelCapabilities())
    with pytest.raises(PluginError, match="must be of type ModelCapabilities"):
        registry.add("X", HERE, capabilities={"lora": True})


@pytest.mark.parametrize(
    ("target", "cause"),
    [
        ("broken:Thing", "ZeroDivisionError: division by zero"),
        ("nowhere.at.all:Thing", "ModuleNotFoundError: No module named 'nowhere'"),
        ("sound:Missing", "AttributeError: module 'sound' has no attribute 'Missing'"),
        ("sound:NUMBER", "TypeError: NUMBER is not callable: int"),
    ],
)
def test_a_failing_load_names_plugin_target_and_cause(site, target, cause) -> None:
    site.write("broken", "1 / 0")
    site.write("sound", "NUMBER = 3")
    registry = models()
    registry.plugin = "culprit"
    registry.add("Thing", target)
    with pytest.raises(PluginError) as error:
        registry.load("Thing")
    assert str(error.value) == (
        f"plugin 'culprit' failed in loading model 'Thing' from '{target}': {cause}"
    )
    assert registry.faults.counts == {("culprit", f"loading model 'Thing' from '{target}'"): 1}
