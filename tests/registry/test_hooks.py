"""One test for each hook, named after it; docs/hooks.md has one section for each as well."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from octavo_registry import (
    CacheSpec,
    EngineFacts,
    LazyRegistry,
    MediaItem,
    MediaPrompt,
    MediaSettings,
    ModelCapabilities,
    MultimodalRegistry,
    OctavoError,
    Placeholder,
    PluginError,
    PluginFailure,
    PluginHost,
    RequestOutcome,
    hookimpl,
)


class Made:
    """Stands for whatever a plugin makes."""

    def __init__(self, *args: object) -> None:
        self.args = args


TARGET = f"{__name__}:Made"
SPEC = CacheSpec.full(kv_heads=1, head_dim=8, dtype="float32")
FACTS = EngineFacts(
    model="m",
    architecture="A",
    dtype="float32",
    max_model_len=64,
    vocab_size=32,
    block_tokens=16,
    num_blocks=4,
    max_num_seqs=2,
    max_num_batched_tokens=64,
)
OUTCOME = RequestOutcome(
    request_id="r",
    finish_reasons=("stop",),
    num_prompt_tokens=3,
    num_cached_tokens=0,
    num_output_tokens=5,
    seconds_to_first_token=0.1,
    seconds=0.2,
)


def plugin(name: str = "plugin", **hooks: Any) -> Any:
    """Make a plugin object from functions; markers with options may be set by the caller."""
    marked = {k: f if hasattr(f, "octavo_impl") else hookimpl(f) for k, f in hooks.items()}
    return SimpleNamespace(__name__=name, OCTAVO_API="1", **marked)


def host_of(*plugins: Any) -> PluginHost:
    host = PluginHost()
    choices = (host.models, host.attention_backends, host.tool_parsers, host.reasoning_parsers)
    for registry in choices:
        for name in CHOSEN:
            registry.add(name, TARGET)
    for each in plugins:
        host.register(each)
    return host


CHOSEN = (
    "default",
    "mine",
    "any b",
    "any a",
    "for cpu",
    "asked",
    "asked!",
    "{{ tools }}",
    "transformers",
    "A",
)
"""Names that choices here may fall on."""


def check_register(hook: str, argument: str, **metadata: Any) -> LazyRegistry[Any]:
    """Register one name through the hook; return the host's registry that must now have it."""
    calls: list[object] = []

    def register(registry: LazyRegistry[Any]) -> None:
        calls.append(registry)
        registry.add("thing", TARGET, **metadata)

    namespace: dict[str, Any] = {"register": register}
    exec(f"def implementation({argument}): register({argument})", namespace)
    host = host_of(plugin(**{hook: namespace["implementation"]}))
    registry: LazyRegistry[Any] = getattr(host, hook.removeprefix("register_"))
    assert calls == [registry]
    assert registry.info("thing").plugin == "plugin"
    assert registry.load("thing") is Made
    return registry


def test_hook_register_models() -> None:
    registry = check_register(
        "register_models", "models", capabilities=ModelCapabilities(lora=True)
    )
    assert registry.info("thing").metadata["capabilities"].lora


def test_hook_register_inputs() -> None:
    check_register("register_inputs", "inputs")


def place_after_first(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    tokens = [prompt.token_ids[0], *[settings.config["image_token"]] * 3, *prompt.token_ids[1:]]
    places = [Placeholder(item=0, start=1, length=3)]
    return MediaPrompt(token_ids=tokens, media=prompt.media, placeholders=places)


def test_hook_register_inputs_places_placeholders_in_prompts_with_media() -> None:
    host = host_of(
        plugin(
            register_inputs=lambda inputs: inputs.add("Llava", f"{__name__}:place_after_first"),
        )
    )
    image = MediaItem(modality="image", value=None, content_hash="0")
    prompt = MediaPrompt(token_ids=[5, 6], media=[image])
    settings = MediaSettings(config={"image_token": 9}, processors={})
    placed = host.inputs.process_input("Llava", prompt, settings)
    assert placed.token_ids == [5, 9, 9, 9, 6]
    text = MediaPrompt(token_ids=[5])
    assert host.inputs.process_input("Text", text, settings) is text
    with pytest.raises(OctavoError, match="Text takes no image; send text only"):
        host.inputs.process_input("Text", prompt, settings)
    with pytest.raises(PluginError, match=r"'plugin' failed in input processor.*KeyError"):
        host.inputs.process_input("Llava", prompt, MediaSettings(config={}, processors={}))
    assert host.faults.quarantined == {}


def test_hook_register_multimodal() -> None:
    check_register("register_multimodal", "mm")


def double(modality: str, item: MediaItem, settings: MediaSettings) -> dict[str, Any]:
    return {modality: item.value * settings.config["factor"]}


def frames_for(modality: str, settings: MediaSettings) -> dict[str, Any]:
    return {"num_frames": settings.entry(modality, "num_frames", 8)}


def test_hook_register_multimodal_maps_items_to_tensors() -> None:
    host = host_of(plugin(register_multimodal=lambda mm: mm.add("Llava", f"{__name__}:double")))
    item = MediaItem(modality="image", value=4, content_hash="0")
    settings = MediaSettings(config={"factor": 2}, processors={})
    mapped = host.multimodal.map_input("image", item, architecture="Llava", settings=settings)
    assert mapped == {"image": 8}


def test_a_model_may_say_what_the_decoder_of_its_media_is_to_do() -> None:
    target = f"{__name__}:double"

    def register(mm: MultimodalRegistry) -> None:
        mm.add("Plain", target)
        mm.add("Video", target, options=f"{__name__}:frames_for")

    host = host_of(plugin(register_multimodal=register))
    for architecture, entries, expected in (
        ("Plain", {}, {}),
        ("Video", {}, {"num_frames": 8}),
        ("Video", {"num_frames": 4}, {"num_frames": 4}),
    ):
        settings = MediaSettings(config={}, processors={"video": entries})
        options = host.multimodal.decode_options(
            "video", architecture=architecture, settings=settings
        )
        assert options == expected


def kwargs_of(config: dict[str, Any]) -> dict[str, Any]:
    return {"max_pixels": (1, config["most"])}


def test_models_of_one_architecture_may_differ_in_what_may_be_set() -> None:
    target = f"{__name__}:double"

    def register(mm: MultimodalRegistry) -> None:
        mm.add("Plain", target)
        mm.add("One", target, kwargs={"fps": (1, 2)})
        mm.add("Many", target, kwargs_of=f"{__name__}:kwargs_of")

    known = host_of(plugin(register_multimodal=register)).multimodal.kwargs
    assert (known("Plain", {}), known("One", {})) == ({}, {"fps": (1, 2)})
    assert known("Many", {"most": 4}) == {"max_pixels": (1, 4)}
    with pytest.raises(PluginError, match="'plugin' failed in mm_processor_kwargs of Many"):
        known("Many", {})


def test_hook_register_modalities() -> None:
    check_register("register_modalities", "modalities")


def test_hook_register_tool_parsers() -> None:
    check_register("register_tool_parsers", "parsers")


def test_hook_register_reasoning_parsers() -> None:
    check_register("register_reasoning_parsers", "parsers")


def test_hook_register_tokenizers() -> None:
    check_register("register_tokenizers", "tokenizers")


def test_hook_register_logits_processors() -> None:
    check_register("register_logits_processors", "processors")


def test_hook_register_guided_backends() -> None:
    registry = check_register("register_guided_backends", "backends", keywords=("regex",))
    assert registry.info("thing").metadata["keywords"] == ("regex",)


def test_hook_register_attention_backends() -> None:
    check_register("register_attention_backends", "backends")


def test_hook_register_quantizations() -> None:
    check_register("register_quantizations", "quantizations")


def test_hook_register_executors() -> None:
    check_register("register_executors", "executors")


def test_hook_register_adapters() -> None:
    check_register("register_adapters", "adapters")


def test_hook_register_sources() -> None:
    check_register("register_sources", "sources")


def test_hook_register_routes() -> None:
    check_register("register_routes", "routes")


def test_hook_register_commands() -> None:
    registry = check_register("register_commands", "commands", help="does things")
    assert registry.info("thing").metadata["help"] == "does things"


def test_hook_register_options() -> None:
    host = host_of(plugin(register_options=lambda options: options.add("size", int, 3, "how big")))
    assert host.option("plugin", "size") == 3
    assert host.registrations("plugin") == {"option": ["size"]}


def test_hook_select_model() -> None:
    default = hookimpl(trylast=True)(lambda architecture, config: f"any {config['model_type']}")
    some = plugin("some", select_model=lambda architecture: {"A": "mine"}.get(architecture))
    select = host_of(plugin("default", select_model=default), some).hook.select_model
    assert select(architecture="A", config={"model_type": "a"}) == "mine"
    assert select(architecture="B", config={"model_type": "b"}) == "any b"
    assert PluginHost().hook.select_model(architecture="A", config={}) is None


def test_hook_select_attention_backend() -> None:
    first = plugin("first", select_attention_backend=lambda spec, device: f"for {device}")
    second = plugin("second", select_attention_backend=lambda spec: None)
    host = host_of(first, second)
    select = host.hook.select_attention_backend
    assert select(spec=SPEC, device="cpu", query_dtype="float32") == "for cpu"


def test_hook_select_tool_parser() -> None:
    late = hookimpl(trylast=True)(lambda architecture: "default")
    early = hookimpl(tryfirst=True)(lambda config: config.get("override"))
    host = host_of(
        plugin("override", select_tool_parser=early), plugin("default", select_tool_parser=late)
    )
    select = partial(host.hook.select_tool_parser, architecture="A", chat_template=None)
    assert select(config={"override": "mine"}) == "mine"
    assert select(config={}) == "default"


def test_hook_select_tool_parser_gets_the_chat_template() -> None:
    host = host_of(plugin("p", select_tool_parser=lambda chat_template: chat_template))
    select = host.hook.select_tool_parser
    assert select(architecture="A", config={}, chat_template="{{ tools }}") == "{{ tools }}"


def test_hook_select_reasoning_parser() -> None:
    def by_template(chat_template: str | None) -> str | None:
        return "mine" if chat_template and "<think>" in chat_template else None

    host = host_of(plugin("p", select_reasoning_parser=by_template))
    select = partial(host.hook.select_reasoning_parser, architecture="A", config={})
    assert select(chat_template="<think>") == "mine"
    assert select(chat_template=None) is None


def test_hook_select_chat_template() -> None:
    def broken(architecture: str) -> str:
        raise KeyError(architecture)

    host = host_of(plugin(select_chat_template=broken))
    with pytest.raises(PluginError, match="'plugin' failed in select_chat_template: KeyError"):
        host.hook.select_chat_template(architecture="A", config={})
    with pytest.raises(PluginError, match="'plugin' is paused"):
        host.hook.select_chat_template(architecture="A", config={})
    assert PluginHost().hook.select_chat_template(architecture="A", config={}) is None


def test_hook_engine_started() -> None:
    told: list[EngineFacts] = []
    host = host_of(plugin(engine_started=lambda facts: told.append(facts)))
    host.notify("engine_started", facts=FACTS)
    assert host.settle_events()
    assert told == [FACTS]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_hook_request_finished() -> None:
    clock, told = Clock(), []
    host = PluginHost(clock=clock)

    def broken(outcome: RequestOutcome) -> None:
        told.append("broken")
        raise OctavoError("no more")

    host.register(plugin("ape", request_finished=lambda outcome: told.append("ape")))
    host.register(plugin("broken", request_finished=broken))
    host.register(plugin("cow", request_finished=lambda: told.append("cow")))
    for seconds, expected in ((0, True), (29, False), (1, True)):
        clock.now += seconds
        told.clear()
        host.notify("request_finished", outcome=OUTCOME)
        assert host.settle_events()
        assert sorted(told) == (["ape", "broken", "cow"] if expected else ["ape", "cow"])
    assert host.faults.counts == {("broken", "request_finished"): 2}


def test_hook_plugin_failed() -> None:
    told: list[PluginFailure] = []

    def broken(failure: PluginFailure) -> None:
        raise ValueError("even this")

    host = host_of(
        plugin("ape", plugin_failed=lambda failure: told.append(failure)),
        plugin("broken", engine_started=lambda: 1 / 0, plugin_failed=broken),
        plugin("cow", plugin_failed=broken),
    )
    host.notify("engine_started", facts=FACTS)
    assert host.settle_events()
    assert told == [
        PluginFailure(
            plugin="broken",
            call="engine_started",
            error="ZeroDivisionError: division by zero",
            count=1,
            quarantined=True,
        )
    ]
    assert host.faults.counts[("cow", "plugin_failed")] == 1
