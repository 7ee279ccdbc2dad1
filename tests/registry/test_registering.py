"""``INPUT_REGISTRY`` and ``MULTIMODAL_REGISTRY``: functions that register themselves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from markdown import ROOT, code_blocks
from octavo.inputs import INPUT_REGISTRY
from octavo.multimodal import MULTIMODAL_REGISTRY
from octavo_registry import PluginHost, hookimpl
from octavo_registry.errors import DuplicateNameError, PluginError
from octavo_registry.modalities import MediaItem, MediaPrompt, MediaSettings

PLUGIN = """
from markdown import ROOT, code_blocks
from octavo.inputs import INPUT_REGISTRY
from octavo.multimodal import MULTIMODAL_REGISTRY

def options(modality, settings):
    return {"num_frames": 7}

@INPUT_REGISTRY.register_input_processor("Ape", texts={"image": "<ape>"})
@INPUT_REGISTRY.register_input_processor("Bee", special_tokens=False)
def place(prompt, settings):
    return type(prompt)(token_ids=[9, *prompt.token_ids], media=prompt.media)

@MULTIMODAL_REGISTRY.register_input_mapper("Ape", kwargs={"size": (1, 9)}, options=options)
def tensors_of(modality, item, settings):
    return {modality: item.value}
"""
SETTINGS = MediaSettings(config={}, processors={})
ITEM = MediaItem(modality="image", value=5, content_hash="a")


def test_a_plugin_with_marked_functions_registers_them_at_their_architectures(site: Any) -> None:
    site.install("mouse", PLUGIN)
    host = PluginHost.discover()
    assert host.inputs.names() == ["Ape", "Bee"]
    assert host.inputs.info("Ape").plugin == "mouse"
    assert host.inputs.info("Ape").target == "mouse:place"
    assert host.inputs.info("Ape").metadata["texts"] == {"image": "<ape>"}
    assert host.inputs.info("Bee").metadata["special_tokens"] is False
    prompt = host.inputs.process_input("Bee", MediaPrompt(token_ids=[1]), SETTINGS)
    assert prompt.token_ids == [9, 1]
    made = host.multimodal.map_input("image", ITEM, architecture="Ape", settings=SETTINGS)
    assert made == {"image": 5}
    assert host.multimodal.kwargs("Ape", {}) == {"size": (1, 9)}
    decoding = host.multimodal.decode_options("video", architecture="Ape", settings=SETTINGS)
    assert decoding == {"num_frames": 7}


def test_the_example_of_the_page_of_hooks_registers(site: Any) -> None:
    blocks = code_blocks(ROOT / "docs" / "hooks.md", "python")
    site.install("duet", next(block for block in blocks if "INPUT_REGISTRY" in block))
    host = PluginHost.discover()
    assert host.inputs.names() == host.multimodal.names() == ["DuetForCausalLM"]


def test_what_is_registered_belongs_to_one_host(site: Any) -> None:
    site.install("mouse", PLUGIN)
    PluginHost.discover()
    assert len(PluginHost.discover(disabled=["mouse"]).inputs) == 0
    child = PluginHost.from_manifest(PluginHost.discover().manifest())
    assert child.inputs.names() == ["Ape", "Bee"]


def test_marks_and_hooks_of_a_plugin_go_together(site: Any) -> None:
    more = "\n@hookimpl\ndef register_inputs(inputs): inputs.add('Cat', 'mouse:place')"
    site.install("mouse", PLUGIN + more)
    assert PluginHost.discover().inputs.names() == ["Ape", "Bee", "Cat"]


def test_what_is_wrong_with_a_mark_names_the_plugin(site: Any) -> None:
    site.install("mouse", PLUGIN.replace("texts=", "text="))
    with pytest.raises(PluginError, match=r"plugin 'mouse' adds .* 'Ape' with text=; close:"):
        PluginHost.discover()


def test_two_plugins_cannot_have_one_architecture(site: Any) -> None:
    site.install("mouse", PLUGIN)
    site.install("horse", PLUGIN)
    with pytest.raises(DuplicateNameError, match="'horse:place' of plugin 'horse'"):
        PluginHost.discover()


def test_only_a_function_that_can_be_imported_is_marked() -> None:
    for function in (lambda prompt, settings: prompt, SimpleNamespace(), hookimpl):
        with pytest.raises(PluginError, match="use a function of a module"):
            INPUT_REGISTRY.register_input_processor("Ape")(function)


@pytest.mark.parametrize(
    ("registry", "name", "told"),
    [
        (MULTIMODAL_REGISTRY, "register_processor", "INPUT_REGISTRY.register_input_processor"),
        (MULTIMODAL_REGISTRY, "register_max_image_tokens", "memory is budgeted by arithmetic"),
        (MULTIMODAL_REGISTRY, "map_input", "host.multimodal.map_input"),
        (INPUT_REGISTRY, "register_dummy_data", "memory is budgeted by arithmetic"),
        (INPUT_REGISTRY, "process_input", "host.inputs.process_input"),
    ],
)
def test_methods_that_vllms_registries_have_are_told(registry: Any, name: str, told: str) -> None:
    with pytest.raises(AttributeError, match=told):
        getattr(registry, name)
    with pytest.raises(AttributeError, match=r"has no nonsense$"):
        registry.nonsense  # noqa: B018
