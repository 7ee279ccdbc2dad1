"""Every hook of the contract.

``register_*`` are called once for each plugin while a process loads its plugins, in order of plugin
names, and must only add names: nothing heavy is imported, since a target is loaded when it is first
used. They return nothing and take no wrappers. ``select_*`` answer a question once when an engine
is loaded: the first answer that is not None wins, later plugins (by name) are asked first, shipped
defaults are ``trylast``, overrides ``tryfirst``. Events, in the past tense, go to every plugin;
what one raises is counted against it and hurts no other. No hook is called per step or per token.

An implementation may leave out arguments that it does not need. One of a choice or an event may ask
for its plugin's options by a keyword-only argument ``options``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from octavo_registry.hooks.markers import hookspec

if TYPE_CHECKING:
    import torch

    from octavo_registry.adapters import AdapterFormat, AdapterResolver
    from octavo_registry.attention import AttentionBackend
    from octavo_registry.cache import CacheSpec
    from octavo_registry.commands import Command
    from octavo_registry.events import EngineFacts, PluginFailure, RequestOutcome
    from octavo_registry.executor import Executor
    from octavo_registry.guided import GuidedBackend
    from octavo_registry.lazy import LazyRegistry
    from octavo_registry.linear import Quantization
    from octavo_registry.logits import LogitsProcessor
    from octavo_registry.modalities import InputRegistry, ModalityDecoder, MultimodalRegistry
    from octavo_registry.model import Model
    from octavo_registry.options import OptionRegistry
    from octavo_registry.routes import RouteGroup
    from octavo_registry.sources import ModelSource
    from octavo_registry.tokenizer import Tokenizer
    from octavo_registry.tools import ReasoningParser, ToolParser


@hookspec(historic=True)
def register_models(models: LazyRegistry[Model]) -> None:
    """Add model architectures: ``models.add("ArchForCausalLM", target, capabilities=...)``.

    The name is that of ``architectures`` in config.json. ``capabilities`` is a ModelCapabilities;
    left out, the model generates text on one device. The target is called ``Model(spec)``, once a
    worker.
    """


@hookspec(historic=True)
def register_inputs(inputs: InputRegistry) -> None:
    """Add input processors by architecture, for prompts with media.

    The target is a function ``(prompt, settings) -> MediaPrompt``, called once a request that has
    media, or is text, in the process that takes requests, through ``host.inputs.process_input``.
    ``texts`` say what stands for an item, by modality, in a chat template that takes text alone;
    ``special_tokens=False`` that prompts bring those around them themselves.
    """


@hookspec(historic=True)
def register_multimodal(mm: MultimodalRegistry) -> None:
    """Add, by architecture, the map from decoded media to the model's tensors.

    The target is a function ``(modality, item, settings) -> Mapping[str, Tensor]``, called once an
    item through ``host.multimodal.map_input``; ``options`` may name one that says what the decoder
    is to do for the model, ``(modality, settings) -> dict``, and ``rows`` one for items that come
    encoded. ``kwargs`` are what a user or a request may say in ``mm_processor_kwargs``, and
    ``kwargs_of`` names a function ``(config) -> kwargs``.
    """


@hookspec(historic=True)
def register_modalities(modalities: LazyRegistry[ModalityDecoder]) -> None:
    """Add decoders of media bytes, by modality: "image", "video", "audio".

    The target is called without arguments, once a process. ``samples`` names a function that
    returns the ``octavo.testing.modality.ModalitySamples`` that the conformance kit tries it with.
    """


@hookspec(historic=True)
def register_tool_parsers(parsers: LazyRegistry[ToolParser]) -> None:
    """Add tool-call parsers; users choose one by name. The target is called ``Parser(tokenizer)``.

    It is made once a process, and gives one stream a message.
    """


@hookspec(historic=True)
def register_reasoning_parsers(parsers: LazyRegistry[ReasoningParser]) -> None:
    """Add reasoning parsers; users choose one by name. The target is called ``Parser(tokenizer)``.

    It is made once a process, and gives one stream a message.
    """


@hookspec(historic=True)
def register_tokenizers(tokenizers: LazyRegistry[Tokenizer]) -> None:
    """Add tokenizer loaders; the target is called once in each process that handles text."""


@hookspec(historic=True)
def register_logits_processors(processors: LazyRegistry[LogitsProcessor]) -> None:
    """Add logits processors; an engine runs those that its config names, in that order.

    The target is called ``Processor(vocab_size, device)``, once a worker.
    """


@hookspec(historic=True)
def register_guided_backends(backends: LazyRegistry[GuidedBackend]) -> None:
    """Add structured-output backends: ``backends.add(name, target, keywords=("json", ...))``.

    ``keywords`` are the kinds of constraint, and for JSON schema the keywords, that it enforces; a
    request with another one is refused by name before the backend is loaded. The lowest ``rank``
    that enforces all of a constraint is taken. ``native=True`` promises that its states work
    outside the interpreter lock, within limits of their own: the engine's threads fill their masks.
    Others fill them in processes that can be ended. ``automata=True`` says that it is an
    ``AutomatonBackend``, to be taken where the engine's device walks its guides, or by its name.
    The target is called ``Backend(vocabulary)``, once in each process that uses it.
    """


@hookspec(historic=True)
def register_attention_backends(backends: LazyRegistry[AttentionBackend]) -> None:
    """Add attention backends. The target is called without arguments, once a worker."""


@hookspec(historic=True)
def register_quantizations(quantizations: LazyRegistry[Quantization]) -> None:
    """Add quantizations, by the ``quant_method`` of a checkpoint's ``quantization_config``.

    The target is called ``Quantization(quantization_config, config)``, once a model.
    """


@hookspec(historic=True)
def register_executors(executors: LazyRegistry[Executor]) -> None:
    """Add executors, which start workers and hand them steps. Made once an engine."""


@hookspec(historic=True)
def register_adapters(adapters: LazyRegistry[AdapterFormat | AdapterResolver]) -> None:
    """Add adapter formats (they have ``read``) and resolvers (they have ``find``).

    The target is called without arguments when adapters are first used. All are
    asked in order of names until one does not answer None.
    """


@hookspec(historic=True)
def register_sources(sources: LazyRegistry[ModelSource]) -> None:
    """Add model sources; all are asked for a model's name until one knows it.

    The target is called without arguments, once for each name looked up.
    """


@hookspec(historic=True)
def register_routes(routes: LazyRegistry[RouteGroup]) -> None:
    """Add groups of HTTP routes. The target is called ``Group(server)``, once a server."""


@hookspec(historic=True)
def register_commands(commands: LazyRegistry[Command]) -> None:
    """Add subcommands of ``octavo``: ``commands.add(name, target, help="one line")``.

    The target is called without arguments when its command is the one that was given.
    """


@hookspec(historic=True)
def register_options(options: OptionRegistry) -> None:
    """Declare the plugin's options: ``options.add(key, type, default, help)``.

    Users give them as ``--plugin.NAME.KEY VALUE`` or ``plugin_options={NAME: {KEY: value}}``. The
    plugin's targets, choices and events that have a keyword-only argument ``options`` get them.
    """


@hookspec(firstresult=True)
def select_model(architecture: str, config: Mapping[str, Any]) -> str | None:
    """Choose a registered model that runs an architecture which no plugin registers.

    Called once for each of config.json's ``architectures`` whenever a model's folder is opened;
    ``config`` is config.json. The model gets the architecture in ``ModelSpec.architecture``. None
    passes on; if all do, the model is refused by name.
    """


@hookspec(firstresult=True)
def select_attention_backend(spec: CacheSpec, device: torch.device, query_dtype: str) -> str | None:
    """Choose a registered attention backend for layers of ``spec``, when the user named none.

    Called by the engine once for each cache group at load. None passes on to the next plugin; if
    all do, loading fails and says so. A backend that then refuses the spec is an error.
    ``query_dtype`` is the model's, such as "bfloat16": the cache's may be another.
    """


@hookspec(firstresult=True)
def select_tool_parser(
    architecture: str, config: Mapping[str, Any], chat_template: str | None
) -> str | None:
    """Choose a registered tool parser for a model, when the user left the choice open.

    Called once when a chat interface is started. ``config`` is config.json; ``chat_template`` is
    the Jinja text that requests with tools are written by, which shows the format where models of
    one architecture differ, None if there is none. None passes on; if all do, a request with tools
    is refused with the names that there are.
    """


@hookspec(firstresult=True)
def select_reasoning_parser(
    architecture: str, config: Mapping[str, Any], chat_template: str | None
) -> str | None:
    """Choose a registered reasoning parser for a model, when the user asked for "auto".

    Called once when a chat interface is started, with what ``select_tool_parser`` gets. None passes
    on; if all do, reasoning stays in the text.
    """


@hookspec(firstresult=True)
def select_chat_template(architecture: str, config: Mapping[str, Any]) -> str | None:
    """Give a chat template, as Jinja text, for a model that brings none, when the user gave none.

    Called once when a chat interface is started. None passes on; if all do, chat is refused.
    """


@hookspec
def engine_started(facts: EngineFacts) -> None:
    """Tell that an engine is ready. Called once an engine, in the process that runs it."""


@hookspec
def request_finished(outcome: RequestOutcome) -> None:
    """Tell that a request has ended, well or not. Called once a request, in the client's process.

    As for all events, an implementation runs in a thread of its plugin's.
    """


@hookspec
def plugin_failed(failure: PluginFailure) -> None:
    """Tell that a plugin raised. Called once a failure; one inside this event is not announced."""
