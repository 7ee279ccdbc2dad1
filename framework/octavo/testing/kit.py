"""Runs every check that the kinds of a plugin's registrations call for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

from octavo.errors import UnknownNameError
from octavo.testing.guided import check_guided_backend
from octavo.testing.parsers import check_reasoning_parser, check_tool_parser
from octavo.testing.protocols import PROTOCOLS, check_target
from octavo.testing.report import Check, Report
from octavo_registry import (
    LazyRegistry,
    MediaPrompt,
    MediaSettings,
    ModelCapabilities,
    PluginHost,
    PluginRecord,
    SamplesTokens,
)
from octavo_registry.faults import FAILURES, one_line
from octavo_registry.lazy import load_target
from octavo_registry.naming import close_or_known

_IMPORT = """
import importlib, json, sys
sys.path[:] = json.loads(sys.argv[2])
importlib.import_module(sys.argv[1])
heavy = [name for name in ("torch", "transformers") if name in sys.modules]
sys.exit(f"importing {sys.argv[1]} imports {', '.join(heavy)}" if heavy else 0)
"""


def run(host: PluginHost, plugin: str) -> Report:
    """Check one loaded plugin, by its name or its module; a check never raises."""
    record = _find(host, plugin)
    with host.faults.without_quarantine():
        checks = [_light_import(record), *_registered(host, record.name)]
    return Report(plugin=record.name, checks=tuple(checks))


def _find(host: PluginHost, plugin: str) -> PluginRecord:
    for record in host.plugins:
        if plugin in (record.name, record.module):
            return record
    names = [record.name for record in host.plugins]
    raise UnknownNameError(
        f"no plugin named {plugin!r} is loaded; {close_or_known(plugin, names)}; "
        f"one that is not installed is loaded with --plugin MODULE"
    )


def _light_import(record: PluginRecord) -> Check:
    """Importing the plugin's module must load neither torch nor transformers."""
    name = "the plugin's module imports neither torch nor transformers"
    if record.module is None:
        return Check(name=name, passed=True, detail="not claimed: the plugin is an object")
    command = [sys.executable, "-c", _IMPORT, record.module, json.dumps(sys.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1:]
    return Check(name=name, passed=done.returncode == 0, detail="".join(last))


def _registered(host: PluginHost, plugin: str) -> Iterator[Check]:
    registrations = host.registrations(plugin)
    if not registrations:
        yield Check(name="the plugin registers something", passed=False, detail="nothing found")
    for attribute, protocol in PROTOCOLS.items():
        registry: LazyRegistry[object] = getattr(host, attribute)
        for entry in registry.of_plugin(plugin):
            title = f"{registry.kind} {entry.name!r}"
            loaded = check_target(f"{title} keeps its protocol", registry, entry, protocol)
            yield loaded
            if loaded.passed and attribute in _FURTHER:
                yield from _further(title, _FURTHER[attribute], host, entry.name)


def _further(
    title: str, check: Callable[[PluginHost, str], list[Check]], host: PluginHost, name: str
) -> list[Check]:
    try:
        return check(host, name)
    except FAILURES as error:
        return [Check(name=f"{title} can be checked", passed=False, detail=one_line(error))]


def _check_model(host: PluginHost, architecture: str) -> list[Check]:
    from octavo.testing.model import check_model  # needs torch; other kinds do not

    capabilities: ModelCapabilities = host.models.info(architecture).metadata["capabilities"]
    if capabilities.transcriber is not None:
        load_target(capabilities.transcriber)
    if "generate" in capabilities.tasks:
        title = f"model {architecture!r} has logits"
        writes = check_target(title, host.models, host.models.info(architecture), (SamplesTokens,))
        if not writes.passed:
            return [writes]
    return check_model(host, architecture)


def _check_modality(host: PluginHost, name: str) -> list[Check]:
    from octavo.testing.modality import check_modality  # needs numpy

    return check_modality(host, name)


def _check_processor(host: PluginHost, architecture: str) -> list[Check]:
    """What places or maps media is tried with the model: here where that is another plugin's."""
    if architecture not in host.models:
        detail = "not claimed: no plugin that is loaded has the model"
        return [Check(name=f"model {architecture!r} can be tried", passed=True, detail=detail)]
    own = host.models.info(architecture).plugin
    registries = [each for each in (host.inputs, host.multimodal) if architecture in each]
    if all(each.info(architecture).plugin == own for each in registries):
        return []
    return _check_model(host, architecture)


def _check_input(host: PluginHost, architecture: str) -> list[Check]:
    """With its model, and without: text that has no items stays as it is."""
    title = f"input processor {architecture!r} leaves text without media as it is"
    if architecture in host.models:
        return _check_processor(host, architecture)
    prompt = MediaPrompt(token_ids=[5, 6, 7], media=())
    process = host.inputs.bind(architecture, host.inputs.load(architecture))
    try:
        found = process(prompt, MediaSettings(config={}, processors={}))
    except FAILURES as error:
        wants = f"not claimed: it needs its model's settings, {one_line(error)}"
        return [
            Check(name=title, passed=True, detail=wants),
            *_check_processor(host, architecture),
        ]
    is_same = isinstance(found, MediaPrompt) and list(found.token_ids) == [5, 6, 7]
    detail = "" if is_same else f"it returned {found!r}"
    return [
        Check(name=title, passed=is_same, detail=detail),
        *_check_processor(host, architecture),
    ]


def _check_map(host: PluginHost, architecture: str) -> list[Check]:
    """Also that functions load which only some requests need."""
    named = host.multimodal.info(architecture).metadata
    for target in filter(None, (named["options"], named["rows"])):
        load_target(target)
    return _check_processor(host, architecture)


def _check_tool_parser(host: PluginHost, name: str) -> list[Check]:
    parser = host.tool_parsers.make(name, None)
    return check_tool_parser(f"tool parser {name!r}", parser)


def _check_reasoning_parser(host: PluginHost, name: str) -> list[Check]:
    parser = host.reasoning_parsers.make(name, None)
    return check_reasoning_parser(f"reasoning parser {name!r}", parser)


def _check_guided_backend(host: PluginHost, name: str) -> list[Check]:
    metadata = host.guided_backends.info(name).metadata
    make = host.guided_backends.bind(name, host.guided_backends.load(name))
    title = f"guided backend {name!r}"
    return check_guided_backend(
        title,
        make,
        metadata["keywords"],
        native=metadata["native"],
        automata=metadata["automata"],
    )


def _of(module: str, function: str) -> Callable[[PluginHost, str], list[Check]]:
    """A check that is imported when it is made: most need torch or an engine."""

    def check(host: PluginHost, name: str) -> list[Check]:
        checks: list[Check] = load_target(f"octavo.testing.{module}:{function}")(host, name)
        return checks

    return check


_FURTHER: dict[str, Callable[[PluginHost, str], list[Check]]] = {
    "models": _check_model,
    "modalities": _check_modality,
    "inputs": _check_input,
    "multimodal": _check_map,
    "tool_parsers": _check_tool_parser,
    "reasoning_parsers": _check_reasoning_parser,
    "guided_backends": _check_guided_backend,
    "attention_backends": _of("attention", "check_attention"),
    "quantizations": _of("quantization", "check_quantization"),
    "executors": _of("executor", "check_executor"),
    "tokenizers": _of("tokenizer", "check_tokenizer"),
    "sources": _of("sources", "check_source"),
    "adapters": _of("sources", "check_adapters"),
    "logits_processors": _of("logits", "check_logits_processor"),
    "routes": _of("routes", "check_routes"),
    "commands": _of("commands", "check_command"),
}
