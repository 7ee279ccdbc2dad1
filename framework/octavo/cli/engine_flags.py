"""The flags that start an engine, and the keywords that they become."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_type_hints

from octavo.cli.fields import add_fields, given_fields
from octavo.cli.parser import Parser
from octavo.cli.vllm_flags import add_vllm_flags
from octavo.config import EngineConfig
from octavo.params import SamplingParams
from octavo_registry import PluginHost

SAMPLING_FLAGS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "min_tokens",
    "stop",
    "ignore_eos",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "skip_special_tokens",
)
"""``--seed`` is the engine's, from which requests take theirs."""


def add_engine_flags(parser: ArgumentParser, *, with_model: bool = True) -> None:
    """Add MODEL, a flag for each field of the engine's config, and vLLM's other names of flags.

    Flags of the command's own that vLLM has, too, are added before.
    """
    if with_model:
        parser.add_argument("model", metavar="MODEL", help="a folder, or a name of a source's")
    hints = get_type_hints(EngineConfig)
    for name, kind in hints.items():
        if is_dataclass(kind) and isinstance(kind, type):
            add_fields(parser, kind, title=f"{name} options", without=("model",))
    add_fields(parser, EngineConfig, title="more options", only=("logits_processors",))
    if isinstance(parser, Parser):  # a script's own gets ours alone
        add_vllm_flags(parser)


def engine_keywords(args: Namespace, host: PluginHost) -> dict[str, Any]:
    """The keywords of ``LLM`` that were given, with the plugins that this process has loaded."""
    manifest = host.manifest()
    keywords: dict[str, Any] = {
        "model": args.model,
        "plugins": [p.module for p in manifest.plugins if p.distribution is None],
        "disable_plugins": list(manifest.disabled),
        "plugin_options": manifest.options,
        **given_fields(args, EngineConfig),
    }
    for field in fields(EngineConfig):
        kind = get_type_hints(EngineConfig)[field.name]
        if is_dataclass(kind) and isinstance(kind, type):
            keywords |= given_fields(args, kind)
    return keywords


def add_sampling_flags(parser: ArgumentParser) -> None:
    """Add how tokens are chosen and when a text ends."""
    add_fields(parser, SamplingParams, title="sampling options", only=SAMPLING_FLAGS)


def given_sampling(args: Namespace, **more: Any) -> dict[str, Any]:
    """What the user gave, and ``more``; refused here, before a model is loaded, if it cannot be."""
    given = {name: getattr(args, name) for name in SAMPLING_FLAGS if hasattr(args, name)} | more
    SamplingParams(**{"max_tokens": None, **given})  # at least min_tokens, whatever the default
    return given


def sampling_params(
    default: SamplingParams, given: dict[str, Any], *, max_tokens: int | None
) -> SamplingParams:
    """The model's own recommendation, changed by what was given.

    ``max_tokens`` takes the place of the API's 16, which is meant for programs. A ``min_tokens``
    that was given raises what was not.
    """
    if default.max_tokens != SamplingParams().max_tokens:
        max_tokens = default.max_tokens
    if max_tokens is not None:
        max_tokens = max(max_tokens, given.get("min_tokens", 0))
    return replace(default, **{"max_tokens": max_tokens, **given})
