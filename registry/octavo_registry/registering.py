"""Functions for media that register themselves, where vLLM's documents have two registries.

A decorator marks a function of a plugin's module; when the plugin is loaded, the host finds the
mark and does what the plugin's ``register_inputs`` or ``register_multimodal`` would. The objects
keep nothing: what is registered belongs to a host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from octavo_registry.errors import PluginError

if TYPE_CHECKING:
    from octavo_registry.modalities import InputRegistry, MultimodalRegistry

F = TypeVar("F", bound=Callable[..., Any])

_MARK: Final = "__octavo_hooks__"
_BUDGETED: Final = "nothing: memory is budgeted by arithmetic, and a model's encode_bytes"
_PROCESSOR: Final = (
    "INPUT_REGISTRY.register_input_processor, which places an item's tokens, and "
    "MULTIMODAL_REGISTRY.register_input_mapper, which makes its tensors"
)
_INSTEAD: Final[Mapping[str, str]] = {
    "create_input_mapper": "host.multimodal of a PluginHost",
    "create_processor": "host.inputs and host.multimodal of a PluginHost",
    "dummy_data_for_profiling": _BUDGETED,
    "get_max_multimodal_tokens": _BUDGETED,
    "map_input": "host.multimodal.map_input of a PluginHost",
    "process_input": "host.inputs.process_input of a PluginHost",
    "register_dummy_data": _BUDGETED,
    "register_dummy_encoder_data": _BUDGETED,
    "register_image_input_mapper": "register_input_mapper, whose function gets the modality",
    "register_max_image_tokens": _BUDGETED,
    "register_max_multimodal_tokens": _BUDGETED,
    "register_plugin": "the hook register_modalities",
    "register_processor": _PROCESSOR,
}
"""Methods that vLLM's registries have or had, and what there is in their place."""


def hooks_of(value: object) -> tuple[Callable[..., None], ...]:
    """What the decorators have marked a function with: implementations of the hooks they name."""
    marks: tuple[Callable[..., None], ...] = getattr(value, _MARK, ())
    return marks if isinstance(value, FunctionType) else ()


class _Registry:
    """What both have."""

    def __getattr__(self, name: str) -> NoReturn:
        text = _INSTEAD.get(name)
        hint = "" if text is None else f", which is vLLM's; here: {text}"
        raise AttributeError(f"{type(self).__name__} has no {name}{hint}")


class InputFunctions(_Registry):
    """``INPUT_REGISTRY``: a decorator for what the hook ``register_inputs`` adds."""

    def register_input_processor(self, architecture: str, **options: Any) -> Callable[[F], F]:
        """Register a function ``(prompt, settings) -> MediaPrompt`` for an architecture.

        ``options`` are those of ``inputs.add``: ``texts``, ``marks``, ``special_tokens``.
        """

        def mark(function: F) -> F:
            def register_inputs(inputs: InputRegistry) -> None:
                inputs.add(architecture, _target(function), **options)

            return _marked(function, register_inputs)

        return mark


class MultimodalFunctions(_Registry):
    """``MULTIMODAL_REGISTRY``: a decorator for what the hook ``register_multimodal`` adds."""

    def register_input_mapper(self, architecture: str, **options: Any) -> Callable[[F], F]:
        """Register a function ``(modality, item, settings) -> tensors`` for an architecture.

        ``options`` are those of ``mm.add``: ``kwargs``, and ``kwargs_of``, ``options`` and
        ``rows``, which may be functions of a module, or name one.
        """

        def mark(function: F) -> F:
            def register_multimodal(mm: MultimodalRegistry) -> None:
                named: dict[str, Any] = {
                    name: _target(value) if isinstance(value, FunctionType) else value
                    for name, value in options.items()
                }
                mm.add(architecture, _target(function), **named)

            return _marked(function, register_multimodal)

        return mark


def _marked(function: F, hook: Callable[..., None]) -> F:
    _target(function)
    setattr(function, _MARK, (*hooks_of(function), hook))
    return function


def _target(function: object) -> str:
    """The name by which a process may import it."""
    name = getattr(function, "__qualname__", "")
    if not isinstance(function, FunctionType) or not name.isidentifier():
        shown = name or repr(function)
        raise PluginError(f"{shown} cannot be registered: use a function of a module, by its name")
    return f"{function.__module__}:{name}"


INPUT_REGISTRY: Final = InputFunctions()
MULTIMODAL_REGISTRY: Final = MultimodalFunctions()
