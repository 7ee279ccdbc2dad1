"""Everything that Octavo raises on purpose; ``OctavoError`` catches all of it."""

from octavo_registry.errors import (
    DuplicateNameError,
    ManifestMismatchError,
    OctavoError,
    PluginError,
    UnknownNameError,
)


class ConfigError(OctavoError):
    """An option, or a combination of options, that cannot work."""


class ParameterError(OctavoError, ValueError):
    """A request's parameter that is out of range or of the wrong type."""


class PromptError(OctavoError, ValueError):
    """A prompt that cannot be used: wrong form, too long, a token id outside the vocabulary."""


class PromptTooLongError(PromptError):
    """A prompt that the model's context cannot hold."""


class ModelError(OctavoError):
    """A model folder that cannot be used: config, weights or tokenizer missing or damaged."""


class UnsupportedConstraint(OctavoError):
    """A structured-output constraint that no backend can enforce; names the keyword."""


class CacheError(OctavoError):
    """Memory for the KV cache does not suffice; the message says what to change."""


class QueueFullError(OctavoError):
    """The engine's waiting queue is at its limit; try again later."""


class EngineDeadError(OctavoError):
    """The engine has ended and answers no more; the message holds the cause where it is known."""


class RequestFailedError(OctavoError):
    """One request raised inside the engine; the others went on."""


def error_class(name: str) -> type[OctavoError]:
    """The class of this module by name, as errors cross from the engine's process."""
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, OctavoError):
        return kind
    return EngineDeadError


__all__ = [
    "CacheError",
    "ConfigError",
    "DuplicateNameError",
    "EngineDeadError",
    "ManifestMismatchError",
    "ModelError",
    "OctavoError",
    "ParameterError",
    "PluginError",
    "PromptError",
    "PromptTooLongError",
    "QueueFullError",
    "RequestFailedError",
    "UnknownNameError",
    "UnsupportedConstraint",
    "error_class",
]
