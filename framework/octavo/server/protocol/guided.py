"""What every text route may be asked, structured output among it: OpenAI's spelling and others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final
from uuid import uuid4

import msgspec

from octavo.inputs import RequestOptions
from octavo.outputs import GuideReceipt
from octavo.params import GuidedParams
from octavo.server.http.errors import HttpError
from octavo.server.http.exchange import encode
from octavo.wording import shown

_Kinds = Mapping[str, type | tuple[type, ...]]
_FORMATS: Final[Mapping[str, _Kinds]] = {
    "text": {},
    "json_object": {},
    "json_schema": {"json_schema": dict},
}
"""What a format of each type has besides it."""
_NAMED_SCHEMA: Final[_Kinds] = {
    "name": str,
    "description": str,
    "schema": (dict, bool),
    "strict": bool,
}
_ASK_NOTHING: Final = (
    "disable_any_whitespace",
    "disable_additional_properties",
    "disable_fallback",
    "whitespace_pattern",
)
"""Fields of vLLM's ``structured_outputs`` that are taken where they are false."""
_CONSTRAINTS: Final = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class TextRequest(msgspec.Struct, kw_only=True):
    """What a body may say of its request."""

    model: str = ""
    stream: bool = False
    priority: int = 0
    cache_salt: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    request_id: str | None = None

    def options(self) -> RequestOptions:
        """How the engine is to treat the request."""
        return RequestOptions(
            request_id=self.request_id or uuid4().hex,
            priority=self.priority,
            cache_salt=self.cache_salt or "",
        )


class GuidedFields(TextRequest, kw_only=True):
    """At most one constraint may be asked for, under one name or several."""

    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_decoding_backend: str | None = None
    structural_tag: str | dict[str, Any] | None = None

    def guided(self, more: GuidedParams | None = None) -> GuidedParams | None:
        """The one constraint that is asked for, if any; ``more`` is what the route has besides."""
        backend = self.guided_decoding_backend
        found = [
            *_of_format(self.response_format, backend),
            *_of_structured_outputs(self.structured_outputs, backend),
            *(
                _made(name, name.removeprefix("guided_"), value, backend)
                for name in _OLDER
                if (value := getattr(self, name)) is not None
            ),
            *([] if more is None else [more]),
        ]
        # Some clients give one constraint under its old name and its new one. By their text, since
        # 1 == True.
        if len(found) > 1 and len({encode(replace(each, origin="")) for each in found}) > 1:
            names = " and ".join(dict.fromkeys(each.origin for each in found))
            raise HttpError(400, f"{names}: give one constraint", param=found[1].origin)
        if backend is not None and not found:
            raise HttpError(
                400, "guided_decoding_backend needs a constraint", param="guided_decoding_backend"
            )
        return found[0] if found else None


_OLDER: Final = (
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structural_tag",
)


def format_guided(origin: str, kind: str, schema: Any) -> GuidedParams | None:
    """The constraint of a format that names its schema beside its type."""
    if kind == "json_schema":
        if not isinstance(schema, (dict, bool)):
            raise HttpError(
                400, f"{origin}: schema={shown(schema)} must be an object", param=origin
            )
        return _made(origin, "json", schema, None)
    return _made(origin, "json_object", True, None) if kind == "json_object" else None


def receipt(guided: GuideReceipt | None) -> GuideReceipt | msgspec.UnsetType:
    """What an answer says of its constraint."""
    return msgspec.UNSET if guided is None else guided


def _of_format(given: dict[str, Any] | None, backend: str | None) -> list[GuidedParams]:
    origin = "response_format"
    if given is None:
        return []
    kind = given.get("type")
    if kind == "structural_tag":
        return [_made(origin, "structural_tag", given, backend)]
    known = _FORMATS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise HttpError(
            400,
            f"{origin}: type={shown(kind)} must be text, json_object, json_schema or "
            "structural_tag",
            param=origin,
        )
    _check_fields(origin, "it", given, {"type": str, **known})
    if kind != "json_schema":
        return [] if kind == "text" else [_made(origin, "json_object", True, backend)]
    form = given.get("json_schema")
    if not isinstance(form, dict) or not isinstance(form.get("schema"), (dict, bool)):
        raise HttpError(400, f"{origin}: json_schema must be an object with a schema", param=origin)
    _check_fields(origin, "json_schema", form, _NAMED_SCHEMA)
    if form.get("name") is None:
        raise HttpError(400, f"{origin}: json_schema.name is missing", param=origin)
    return [_made(origin, "json", form["schema"], backend)]


def _check_fields(origin: str, what: str, given: dict[str, Any], known: _Kinds) -> None:
    for name, value in given.items():
        if value is not None and name not in known:
            raise HttpError(400, f"{origin}: {what} has no field {shown(name)}", param=origin)
        if value is not None and not isinstance(value, known[name]):
            raise HttpError(
                400, f"{origin}: {what}.{name}={shown(value)} is of the wrong type", param=origin
            )


def _of_structured_outputs(given: dict[str, Any] | None, backend: str | None) -> list[GuidedParams]:
    origin = "structured_outputs"
    asked = {
        name: value
        for name, value in (given or {}).items()
        if value is not None and (value is not False or name not in (*_ASK_NOTHING, "json_object"))
    }
    for name in asked:
        if name not in _CONSTRAINTS:
            raise HttpError(
                400,
                f"{origin} has no {shown(name)}; there is: {', '.join(_CONSTRAINTS)}",
                param=origin,
            )
    if given is not None and not asked:
        raise HttpError(400, f"{origin} names no constraint", param=origin)
    return [_made(origin, name, value, backend) for name, value in asked.items()]


def _made(origin: str, name: str, value: Any, backend: str | None) -> GuidedParams:
    return GuidedParams(**{name: value}, backend=backend, origin=origin)
