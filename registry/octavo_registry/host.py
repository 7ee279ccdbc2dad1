"""The plugin host: finds plugins, lets them register, and gives what they registered."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from traceback import walk_tb
from typing import Any, Final

import pluggy

from octavo_registry.adapters import AdapterFormat, AdapterResolver
from octavo_registry.attention import AttentionBackend
from octavo_registry.commands import Command
from octavo_registry.discovery import installed_plugins
from octavo_registry.errors import (
    ManifestMismatchError,
    OctavoError,
    PluginError,
    UnknownNameError,
)
from octavo_registry.events import PluginFailure
from octavo_registry.executor import Executor
from octavo_registry.faults import FAILURES, Faults, one_line
from octavo_registry.guided import AutomatonBackend, GuidedBackend
from octavo_registry.hooks import specs
from octavo_registry.hooks.implementations import hook_callers, implementations, with_arguments
from octavo_registry.hooks.listening import Listener
from octavo_registry.hooks.markers import PROJECT
from octavo_registry.lazy import FRAMEWORK, LazyRegistry
from octavo_registry.linear import Quantization
from octavo_registry.logits import LogitsProcessor
from octavo_registry.manifest import API_VERSION, Manifest, PluginRecord
from octavo_registry.modalities import InputRegistry, ModalityDecoder, MultimodalRegistry
from octavo_registry.model import Model, ModelCapabilities
from octavo_registry.naming import close_or_known
from octavo_registry.options import OptionRegistry
from octavo_registry.routes import RouteGroup
from octavo_registry.sources import ModelSource
from octavo_registry.tokenizer import Tokenizer
from octavo_registry.tools import ReasoningParser, ToolParser

SETTLE_SECONDS: Final = 2.0


class PluginHost:
    """The plugins of one process and all that they registered. It is passed, never a global.

    Choices are asked as ``host.hook.select_tool_parser(...)``, events told by ``notify``.
    """

    models: LazyRegistry[Model]
    inputs: InputRegistry
    multimodal: MultimodalRegistry
    modalities: LazyRegistry[ModalityDecoder]
    tool_parsers: LazyRegistry[ToolParser]
    reasoning_parsers: LazyRegistry[ReasoningParser]
    tokenizers: LazyRegistry[Tokenizer]
    logits_processors: LazyRegistry[LogitsProcessor]
    guided_backends: LazyRegistry[GuidedBackend]
    attention_backends: LazyRegistry[AttentionBackend]
    quantizations: LazyRegistry[Quantization]
    executors: LazyRegistry[Executor]
    adapters: LazyRegistry[AdapterFormat | AdapterResolver]
    sources: LazyRegistry[ModelSource]
    routes: LazyRegistry[RouteGroup]
    commands: LazyRegistry[Command]
    options: OptionRegistry

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.faults = faults = Faults(announce=self._announce, clock=clock)
        self.models = LazyRegistry(
            "model", faults=faults, essential=True, capabilities=ModelCapabilities()
        )
        self.inputs = InputRegistry(
            "input processor", faults=faults, texts={}, marks=(), special_tokens=True
        )
        self.multimodal = MultimodalRegistry(
            "multimodal map", faults=faults, options="", kwargs={}, kwargs_of="", rows=""
        )
        self.modalities = LazyRegistry(
            "modality", faults=faults, makes=(ModalityDecoder,), samples="", strings=False
        )
        self.tool_parsers = LazyRegistry("tool parser", faults=faults, makes=(ToolParser,))
        self.reasoning_parsers = LazyRegistry(
            "reasoning parser", faults=faults, makes=(ReasoningParser,)
        )
        self.tokenizers = LazyRegistry("tokenizer", faults=faults, makes=(Tokenizer,), samples="")
        self.logits_processors = LazyRegistry(
            "logits processor", faults=faults, makes=(LogitsProcessor,), samples=""
        )
        self.guided_backends = LazyRegistry(
            "guided backend",
            faults=faults,
            makes=(GuidedBackend, AutomatonBackend),
            formerly={"machine": "automaton", "machines": "automata"},
            keywords=(),
            rank=100,
            native=False,
            automata=False,
        )
        self.attention_backends = LazyRegistry(
            "attention backend",
            faults=faults,
            makes=(AttentionBackend,),
            formerly={"plan": "prepare", "recordable": "most_recorded_queries"},
        )
        self.quantizations = LazyRegistry(
            "quantization",
            faults=faults,
            makes=(Quantization,),
            formerly={"apply": "that of the QuantizationMethod which method_of(site) gives"},
            samples="",
        )
        self.executors = LazyRegistry("executor", faults=faults, makes=(Executor,))
        self.adapters = LazyRegistry(
            "adapter kind", faults=faults, makes=(AdapterFormat, AdapterResolver), samples=""
        )
        self.sources = LazyRegistry("model source", faults=faults, makes=(ModelSource,), samples="")
        self.routes = LazyRegistry("route group", faults=faults, makes=(RouteGroup,), samples="")
        self.commands = LazyRegistry(
            "command", faults=faults, makes=(Command,), help="", samples=""
        )
        self.options = OptionRegistry()
        for registry in self._registries():
            registry.bind_options = self.options.bind
        self.plugins: tuple[PluginRecord, ...] = ()
        """What is loaded, in order."""
        self.disabled: tuple[str, ...] = ()
        self._option_values: Mapping[str, Mapping[str, Any]] = {}
        self._listeners: dict[str, Listener] = {}
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(specs)
        self.hook = self._manager.hook
        for name, caller in hook_callers(self._manager).items():
            if caller.is_historic():
                (argument,) = caller.spec.argnames
                registry = getattr(self, name.removeprefix("register_"))
                caller.call_historic(kwargs={argument: registry})

    @classmethod
    def discover(
        cls,
        *,
        plugins: Iterable[object] = (),
        disabled: Collection[str] = (),
        options: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> PluginHost:
        """Load the installed plugins by name, then ``plugins``: import paths, or objects.

        A disabled plugin is never imported. A plugin that cannot be loaded is an error, never
        skipped. Objects work in this process only; ``manifest`` refuses them.
        """
        installed = installed_plugins()
        names = [record.name for record in installed]
        for name in disabled:
            if name not in names:
                raise UnknownNameError(
                    f"no plugin named {name!r} to disable; {close_or_known(name, names)}"
                )
        host = cls()
        host.disabled = tuple(sorted(set(disabled)))
        for record in installed:
            if record.name not in host.disabled:
                host._load(record)
        for plugin in plugins:
            if not isinstance(plugin, str):
                host.register(plugin)
            elif all(plugin != record.module for record in host.plugins):
                host._load(PluginRecord(name=plugin, module=plugin))
        host._assign_options(options or {})
        return host

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> PluginHost:
        """Load exactly what the process that made the manifest has, or refuse by name."""
        differences = manifest.differences(installed_plugins())
        if differences:
            raise ManifestMismatchError(
                "this process cannot load the same plugins as the one that started it: "
                + "; ".join(differences)
            )
        host = cls()
        host.disabled = manifest.disabled
        for record in manifest.plugins:
            host._load(record)
        host._assign_options(manifest.options)
        return host

    def manifest(self) -> Manifest:
        """Return what another process needs to load the same; plugin objects are an error."""
        for record in self.plugins:
            if record.module is None:
                raise PluginError(
                    f"plugin {record.name!r} is an object of this process and cannot be used in "
                    f"another; give its import path instead"
                )
        return Manifest(
            api_version=API_VERSION,
            plugins=self.plugins,
            disabled=self.disabled,
            options={name: dict(given) for name, given in self._option_values.items()},
        )

    def notify(self, event: str, **payload: object) -> None:
        """Tell every plugin of an event, and wait for none of them.

        Each hears of its events in order, in a thread of its own; what it raises is counted in
        ``faults`` only, as are events that it is too slow for.
        """
        getattr(self.hook, event)(**payload)

    def settle_events(self, seconds: float = SETTLE_SECONDS) -> bool:
        """Wait until the plugins have heard of all events so far, at most so long in all."""
        end = time.monotonic() + seconds
        listeners = self._listeners.values()
        # Twice: what fails within an event is an event for others, and no further one.
        return all(
            each.settle(max(0.0, end - time.monotonic())) for each in (*listeners, *listeners)
        )

    def is_foreign(self, plugin: str) -> bool:
        """Whether a plugin is none of Octavo's own, nor the framework, whose name is "octavo"."""
        ours = {record.name for record in self.plugins if record.distribution == PROJECT}
        return plugin != PROJECT and plugin not in ours

    def blame(self, error: BaseException, call: str) -> BaseException:
        """Name and count the plugin in whose code an exception came up, if it is one's.

        For calls that are too many to be guarded, as those of a step: the innermost frame that is a
        plugin's own tells. What names a plugin already, and want of memory, stays as it is.
        """
        if isinstance(error, OctavoError) or "OutOfMemory" in type(error).__name__:
            return error
        owners = {record.module: record.name for record in self.plugins if record.module}
        for registry in self._registries():
            owners |= registry.loaded_modules()
        # An executor runs all steps: it is to blame for what comes up in its own code alone.
        running = set(self.executors.loaded_modules().values())
        found = None
        for frame, _ in walk_tb(error.__traceback__):
            module = frame.f_globals.get("__name__", "")
            around = (each for each in owners if module == each or module.startswith(f"{each}."))
            owner = owners.get(max(around, key=len, default=""))
            if found in running or owner is not None:
                found = owner
        return error if found is None else self.faults.failure(found, call, error)

    def option(self, plugin: str, key: str) -> Any:
        """Return a declared option's value: the user's, or the default."""
        return self.options.get(plugin, key)

    def registrations(self, plugin: str) -> dict[str, list[str]]:
        """Return the names that a plugin registered, by kind; for ``octavo plugin list``."""
        names = {
            registry.kind: [entry.name for entry in registry.of_plugin(plugin)]
            for registry in self._registries()
        }
        names["option"] = [o.key for o in self.options.declared() if o.plugin == plugin]
        return {kind: added for kind, added in names.items() if added}

    def register(self, plugin: object) -> None:
        """Add a plugin object: a module, or an instance with ``@hookimpl`` methods."""
        name = getattr(plugin, "__name__", None) or type(plugin).__name__
        self._register(plugin, PluginRecord(name=name, module=None))

    def _load(self, record: PluginRecord) -> None:
        assert record.module is not None
        try:
            module = import_module(record.module)
        except FAILURES as error:
            raise PluginError(
                f"plugin {record.name!r} cannot be imported from {record.module!r}: "
                f"{one_line(error)}; repair it or disable it"
            ) from error
        self._register(module, record)

    def _register(self, plugin: object, record: PluginRecord) -> None:
        """Let a plugin register; if it raises, nothing of it stays."""
        name, target = record.name, record.module or repr(plugin)
        if any(name == other.name for other in self.plugins):
            raise PluginError(f"two plugins are named {name!r}; rename {target}")
        self._check_api(plugin, name, target)
        choices: dict[str, LazyRegistry[Any]] = {
            "select_model": self.models,
            "select_attention_backend": self.attention_backends,
            "select_tool_parser": self.tool_parsers,
            "select_reasoning_parser": self.reasoning_parsers,
        }
        listener = self._listeners[name] = Listener(name, self.faults)
        found = implementations(
            plugin, name, target, self._manager, self.faults, self.options, choices, listener
        )
        self._set_registering(name)
        try:
            self._manager.register(found, name)
        except (OctavoError, pluggy.PluginValidationError) as error:
            self._withdraw(name)
            if isinstance(error, OctavoError):
                raise
            told = with_arguments(one_line(error), self._manager)
            raise PluginError(f"plugin {name!r} ({target}): {told}") from error
        finally:
            self._set_registering(FRAMEWORK)
        self.plugins += (record,)

    def _check_api(self, plugin: object, name: str, target: str) -> None:
        declared = getattr(plugin, "OCTAVO_API", None)
        major = API_VERSION.partition(".")[0]
        if declared != major:
            raise PluginError(
                f"plugin {name!r} ({target}) declares OCTAVO_API = {declared!r}, but this Octavo "
                f"has plugin API {API_VERSION}: it needs OCTAVO_API = {major!r}"
            )

    def _registries(self) -> list[LazyRegistry[Any]]:
        return [value for value in vars(self).values() if isinstance(value, LazyRegistry)]

    def _withdraw(self, plugin: str) -> None:
        self._manager.unregister(name=plugin)
        for registry in self._registries():
            registry.withdraw(plugin)
        self.options.withdraw(plugin)

    def _set_registering(self, plugin: str) -> None:
        for registry in self._registries():
            registry.plugin = plugin
        self.options.plugin = plugin

    def _assign_options(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        self.options.assign(values)
        self._option_values = values

    def _announce(self, failure: PluginFailure) -> None:
        if failure.call != "plugin_failed":  # a listener that fails must not be told of itself
            self.notify("plugin_failed", failure=failure)
