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


class BadRequestError(OctavoError):
    """A request that cannot be answered as it stands; the others go on."""

    param: str | None = None
    """The field to blame. From an engine's process only what the class says comes along."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        if param is not None:
            self.param = param


class ParameterError(BadRequestError, ValueError):
    """A request's parameter that is out of range or of the wrong type."""


class PromptError(BadRequestError, ValueError):
    """A prompt that cannot be used: wrong form, too long, a token id outside the vocabulary."""

    param = "prompt"


class PromptTooLongError(PromptError):
    """A prompt that the model's context cannot hold."""


class MessageError(PromptError):
    """A message of a conversation that cannot be used; the text says which, and what of it."""

    param = "messages"


class ModelError(OctavoError):
    """A model folder that cannot be used: config, weights or tokenizer missing or damaged."""


class UnsupportedConstraint(BadRequestError):
    """A structured-output constraint that no backend can enforce; names the keyword."""

    param = "guided"


class DeadEndError(UnsupportedConstraint):
    """A text that no token continues, though its constraint is not met."""


class AdapterError(BadRequestError):
    """An adapter that cannot be used: damaged, of no known format, or not made for this model."""


class UnknownAdapterError(AdapterError):
    """A name that no adapter has."""

    param = "model"


class CacheError(OctavoError):
    """Memory for the KV cache does not suffice; the message says what to change."""


class QueueFullError(OctavoError):
    """The engine's waiting queue is at its limit; try again later."""


class FrameError(OctavoError):
    """Frames between processes of an engine that are none of ours: damaged, or of a version that
    is not this one's."""


class EngineDeadError(OctavoError):
    """The engine has ended and answers no more; the message holds the cause where it is known."""


class RequestFailedError(OctavoError):
    """One request raised inside the engine; the others went on."""


def error_name(error: BaseException) -> str:
    """The class of this module that an error is of, for one that has to cross to another process.

    A plugin's own OctavoError is one of none but the root.
    """
    names = (kind.__name__ for kind in type(error).__mro__ if globals().get(kind.__name__) is kind)
    return next(names, RequestFailedError.__name__)


def error_class(name: str) -> type[OctavoError]:
    """The class of this module by name, as errors cross from the engine's process."""
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, OctavoError):
        return kind
    return EngineDeadError


__all__ = [
    "AdapterError",
    "BadRequestError",
    "CacheError",
    "ConfigError",
    "DeadEndError",
    "DuplicateNameError",
    "EngineDeadError",
    "FrameError",
    "ManifestMismatchError",
    "MessageError",
    "ModelError",
    "OctavoError",
    "ParameterError",
    "PluginError",
    "PromptError",
    "PromptTooLongError",
    "QueueFullError",
    "RequestFailedError",
    "UnknownAdapterError",
    "UnknownNameError",
    "UnsupportedConstraint",
    "error_class",
    "error_name",
]
