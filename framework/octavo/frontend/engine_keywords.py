"""The options of an engine as one value: to collect, to change and to start it with."""

from __future__ import annotations

import os
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Self, get_type_hints

from octavo.config import EngineConfig
from octavo.frontend.options import check_names


def _with_all_options(cls: type[EngineKeywords]) -> type[EngineKeywords]:
    """Make it a dataclass with a field for each option: those of ``EngineConfig``'s dataclasses."""
    hints = get_type_hints(EngineConfig)
    for group in fields(EngineConfig):
        kind = hints[group.name]
        is_group = is_dataclass(kind) and isinstance(kind, type)
        kinds = get_type_hints(kind) if is_group else hints
        for option in fields(kind) if is_group else [group]:
            cls.__annotations__[option.name] = kinds[option.name]
            if option.default is not MISSING:
                setattr(cls, option.name, field(default=option.default, kw_only=True))
            elif option.default_factory is not MISSING:
                factory = option.default_factory
                setattr(cls, option.name, field(default_factory=factory, kw_only=True))
    return dataclass(cls)


@_with_all_options
class EngineKeywords:
    """What ``EngineArgs`` are without a command line: the keywords of ``LLM`` as fields."""

    plugins: tuple[Any, ...] | list[Any] = field(default=(), kw_only=True)
    disable_plugins: tuple[str, ...] | list[str] = field(default=(), kw_only=True)

    if TYPE_CHECKING:  # fields are those of the config, which a type checker does not run through

        def __init__(self, model: str | os.PathLike[str], **options: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

    def __new__(cls, *args: object, **options: object) -> Self:
        """Refuse unknown names with near matches; the fields are set as in any dataclass."""
        check_names(options, caller=cls.__name__)
        return object.__new__(cls)

    def options(self) -> dict[str, Any]:
        """Return all of them by name, as ``LLM`` takes them."""
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
