"""What a caller asks of one request: frozen, checked at construction, the same for every API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import NoneType
from typing import Any, Final, Literal, Self

from octavo.errors import ParameterError
from octavo.limits import (
    MAX_BAD_WORD_CHARS,
    MAX_BAD_WORDS,
    MAX_KEPT_TOKENS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)
from octavo.vllm_names import as_keywords, here
from octavo.wording import shown
from octavo_registry.naming import close_or_known
from octavo_registry.structure import Structure

OutputKind = Literal["cumulative", "delta", "final"]


class RequestOutputKind(StrEnum):
    """``OutputKind`` as names."""

    CUMULATIVE = "cumulative"
    DELTA = "delta"
    FINAL_ONLY = "final"


_FLAGS = (
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
)


def _refused(name: str, value: object, why: str, place: str = "") -> ParameterError:
    """The error for a field's value; ``place`` is where in the field it stands."""
    return ParameterError(f"{name}{place}={shown(value)} {why}", param=name)


def _check_number(name: str, value: object, low: float, high: float, place: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _refused(name, value, "must be a number", place)
    if not low <= value <= high:  # also NaN
        raise _refused(name, value, f"must be between {low:g} and {high:g}", place)


def _check_int(
    name: str, value: object, low: int, high: int | None = None, place: str = ""
) -> None:
    if type(value) is not int:
        raise _refused(name, value, "must be an integer", place)
    if value < low or (high is not None and value > high):
        bound = f"between {low} and {high}" if high is not None else f"at least {low}"
        raise _refused(name, value, f"must be {bound}", place)


def _is_text(value: object, max_chars: int) -> bool:
    """Whether it is text that a tokenizer takes: half of a surrogate pair is none."""
    if not isinstance(value, str) or not 0 < len(value) <= max_chars:
        return False
    return not any("\ud800" <= char <= "\udfff" for char in value)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidedParams:
    """A constraint on the text: exactly one of the first six fields."""

    json: str | Mapping[str, Any] | bool | type | None = None
    """A JSON schema: a dict, JSON text, a Pydantic model or a dataclass."""
    regex: str | None = None
    choice: tuple[str, ...] | list[str] | None = None
    grammar: str | None = None
    """Lark, or GBNF: rules ``name ::= ...``, of which ``root`` is the first."""
    json_object: bool | None = None
    structural_tag: str | Mapping[str, Any] | Structure | None = None
    """As servers take it, as a dict or JSON text; or made of ``octavo_registry.structure``."""
    backend: str | None = None
    """A registered backend's name; None chooses the fastest that enforces all of it."""
    origin: str = "guided"
    """The field that a request gave it in, which errors name."""

    def __post_init__(self) -> None:
        given = [f.name for f in fields(self)[:6] if getattr(self, f.name) is not None]
        if len(given) != 1:
            names = ", ".join(given) or "none"
            raise ParameterError(
                f"GuidedParams needs exactly one constraint, got: {names}", param="guided"
            )

    @classmethod
    def of(cls, output_type: Any, *, backend: str | None = None) -> GuidedParams:
        """Return the constraint that an output type is, as the package Outlines means it.

        A type of Python (``int``, ``Literal``, an Enum, ``list[...]``, a TypedDict, a dataclass, a
        Pydantic model, a function's arguments), or a term of ``outlines.types``.
        """
        from octavo.guided.schema.output_types import (
            constraint_of,  # Outlines takes a second to import
        )

        return cls(**constraint_of(output_type), backend=backend)

    @property
    def constraint(self) -> str:
        """The name of the field that is given."""
        return next(f.name for f in fields(self)[:6] if getattr(self, f.name) is not None)


def number(default: float, low: float, high: float) -> Any:
    """A field that is a number within bounds, an integer if the default is one."""
    return field(default=default, metadata={"type": type(default), "bounds": (low, high)})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingNumbers:
    """Parameters that reach the device as they are: ``steps.slot_fields`` has a field of each."""

    temperature: float = number(1.0, 0.0, 100.0)
    """0 takes the likeliest token."""
    top_p: float = number(1.0, 0.0, 1.0)
    top_k: int = number(0, -1, 2**31 - 1)
    """0 or -1 keeps all."""
    min_p: float = number(0.0, 0.0, 1.0)
    presence_penalty: float = number(0.0, -2.0, 2.0)
    frequency_penalty: float = number(0.0, -2.0, 2.0)
    repetition_penalty: float = number(1.0, 1e-3, 1e3)


NUMBERS: Final[dict[str, type]] = {
    each.name: each.metadata["type"] for each in fields(SamplingNumbers)
}
"""The type of each, int or float."""
_BOUNDS: Final = {each.name: each.metadata["bounds"] for each in fields(SamplingNumbers)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams(SamplingNumbers):
    """How one request's tokens are chosen and when it ends; names and defaults are vLLM's."""

    n: int = 1
    seed: int | None = None
    """Random numbers follow from seed and position alone; None or -1: a random seed per request."""
    stop: str | tuple[str, ...] | list[str] | None = ()
    stop_token_ids: tuple[int, ...] | list[int] | None = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    """None: up to the context length."""
    min_tokens: int = 0
    logprobs: int | None = None
    """Likeliest tokens to report beside the chosen one, from the logits before any change."""
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = None
    bad_words: tuple[str, ...] | list[str] | None = ()
    allowed_token_ids: tuple[int, ...] | list[int] | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    keep_special_tokens: tuple[str, ...] | list[str] = ()
    """Special tokens that stay in the text all the same: the marks of a tool-call format, say."""
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: OutputKind | RequestOutputKind = "cumulative"
    """What each streamed output of AsyncLLM carries; LLM always gives the final one."""
    truncate_prompt_tokens: int | None = None
    """Keep only so many prompt tokens, the last ones."""
    truncation_side: Literal["left", "right"] = "left"
    """Where the prompt is cut: "right" keeps its first tokens."""
    guided: GuidedParams | None = None
    extra_args: Mapping[str, Any] | None = None
    """For plugin logits processors."""

    def __new__(cls, **given: object) -> Self:
        """Refuse unknown names with near matches; the fields are set as in any dataclass."""
        names = [f.name for f in fields(cls)]
        for name in given:
            if name not in names:
                there = here(name)
                hint = f"here: {as_keywords(there)}" if there else close_or_known(name, names)
                raise TypeError(f"SamplingParams has no field {name!r}; {hint}")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        _check_int("n", self.n, 1, MAX_N)
        for name, (low, high) in _BOUNDS.items():
            check = _check_int if NUMBERS[name] is int else _check_number
            check(name, getattr(self, name), low, high)
        if self.top_p == 0.0:
            raise _refused("top_p", 0.0, "must be above 0; for the likeliest token: temperature=0")
        if self.seed is not None:
            _check_int("seed", self.seed, -(2**63), 2**63 - 1)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1)
        _check_int("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _refused("min_tokens", self.min_tokens, f"is above max_tokens={self.max_tokens}")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value == -1:
                raise _refused(name, -1, f"asks for the whole vocabulary; at most {MAX_LOGPROBS}")
            if value is not None:
                _check_int(name, value, 0, MAX_LOGPROBS)
        if self.truncate_prompt_tokens is not None:
            _check_int("truncate_prompt_tokens", self.truncate_prompt_tokens, 1)
        if self.truncation_side not in ("left", "right"):
            raise _refused("truncation_side", self.truncation_side, "must be 'left' or 'right'")
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise _refused(name, getattr(self, name), "must be True or False")
        if self.guided is not None and not isinstance(self.guided, GuidedParams):
            raise _refused("guided", self.guided, "must be GuidedParams")
        self._check_lists()
        if self.stop_strings and not self.detokenize:
            raise ParameterError(
                "stop strings need detokenize=True; use stop_token_ids instead", param="stop"
            )
        kind = self.output_kind
        if not isinstance(kind, str) or kind not in ("cumulative", "delta", "final"):
            raise _refused("output_kind", kind, "must be 'cumulative', 'delta' or 'final'")

    def _check_lists(self) -> None:
        if not isinstance(self.stop, (str, list, tuple, NoneType)):
            raise _refused("stop", self.stop, "must be a string or a list of strings")
        if not isinstance(self.keep_special_tokens, (list, tuple)):
            raise _refused("keep_special_tokens", self.keep_special_tokens, "must be a list")
        for name in ("stop_token_ids", "bad_words", "allowed_token_ids"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, (list, tuple)):
                raise _refused(name, value, "must be a list")
        for name in ("logit_bias", "extra_args"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Mapping):
                raise _refused(name, value, "must be a dict")
        for name, count, most in (
            ("stop", len(self.stop_strings), MAX_STOP_STRINGS),
            ("stop_token_ids", len(self.stop_token_ids or ()), MAX_STOP_TOKEN_IDS),
            ("logit_bias", len(self.logit_bias or ()), MAX_LOGIT_BIAS),
            ("bad_words", len(self.bad_words or ()), MAX_BAD_WORDS),
            ("keep_special_tokens", len(self.keep_special_tokens), MAX_KEPT_TOKENS),
        ):
            if count > most:
                raise ParameterError(f"{name} has {count} entries; at most {most}", param=name)
        for text in self.stop_strings:
            if not _is_text(text, MAX_STOP_STRING_CHARS):
                raise ParameterError(
                    f"stop string {shown(text)} must have 1 to 256 characters", param="stop"
                )
        for word in self.bad_words or ():
            if not _is_text(word, MAX_BAD_WORD_CHARS):
                raise _refused("bad_words", word, "must have 1 to 256 characters", " entry")
        for text in self.keep_special_tokens:
            if not _is_text(text, MAX_STOP_STRING_CHARS):
                raise _refused("keep_special_tokens", text, "must be a token's text", " entry")
        for token in self.stop_token_ids or ():
            _check_int("stop_token_ids", token, 0, place=" entry")
        for token, bias in (self.logit_bias or {}).items():
            _check_int("logit_bias", token, 0, place=" key")
            _check_number("logit_bias", bias, -100.0, 100.0, place=f"[{shown(token)}]")
        if self.allowed_token_ids is not None:
            if not self.allowed_token_ids:
                raise _refused("allowed_token_ids", (), "is empty: no token could be chosen")
            for token in self.allowed_token_ids:
                _check_int("allowed_token_ids", token, 0, place=" entry")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` as a tuple, whichever form was given."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """Beam search: the ``beam_width`` likeliest continuations."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0
    """Score = sum of logprobs / length ** length_penalty."""
    guided: GuidedParams | None = None
    """A beam's tokens are then those that the guide allows, each as likely as among these."""

    def __post_init__(self) -> None:
        if self.guided is not None and not isinstance(self.guided, GuidedParams):
            raise _refused("guided", self.guided, "must be GuidedParams")
        if self.guided is not None and self.ignore_eos:
            raise _refused("ignore_eos", True, "must be False: the constraint says where beams end")
        _check_int("beam_width", self.beam_width, 1, MAX_LOGPROBS // 2)
        _check_int("max_tokens", self.max_tokens, 1)
        _check_number("length_penalty", self.length_penalty, -10.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingParams:
    """How texts are to become vectors; what is None is as the model's folder says."""

    task: str | None = None
    """"embed"."""
    dimensions: int | None = None
    """Entries of a vector, the first ones; for models that were trained for it."""
    normalize: bool | None = None
    """Whether vectors are scaled to a length of 1."""
    truncate_prompt_tokens: int | None = None
    """Tokens that longer texts are cut to; -1: as many as the model takes. None: such a text is an
    error."""
    prompt_name: str | None = None
    """The prompt of the model's that stands before each text, such as "query"."""

    def __post_init__(self) -> None:
        if self.task not in (None, "embed"):
            raise ParameterError(
                f"task={shown(self.task)} is not available yet; there is: embed", param="task"
            )
        for name, kind, wanted in (
            ("dimensions", (int, NoneType), "a whole number"),
            ("normalize", (bool, NoneType), "True or False"),
            ("truncate_prompt_tokens", (int, NoneType), "a whole number"),
            ("prompt_name", (str, NoneType), "a name"),
        ):
            value = getattr(self, name)
            if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kind):
                raise ParameterError(f"{name}={shown(value)} must be {wanted}", param=name)


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """One adapter, by name; the path may be left out when it is loaded or a resolver knows it."""

    lora_name: str
    lora_int_id: int | None = None
    """A number of the caller's; nothing depends on it."""
    lora_path: str | None = None
    """A folder, or a name that a resolver or a source plugin knows."""
    base_model_name: str | None = None
    """What it was trained on, where that is the engine's model by another name."""

    def __post_init__(self) -> None:
        for name, kind, wanted in (
            ("lora_name", str, "an adapter's name"),
            ("lora_int_id", (int, NoneType), "a whole number"),
            ("lora_path", (str, NoneType), "a folder or a name"),
            ("base_model_name", (str, NoneType), "a name"),
        ):
            value = getattr(self, name)
            if not isinstance(value, kind) or value == "":
                raise ParameterError(
                    f"{name}={shown(value)} must be {wanted}", param="lora_request"
                )

    @staticmethod
    def checked(given: LoRARequest) -> LoRARequest:
        """Return what a caller gave for one; raises for anything else."""
        if not isinstance(given, LoRARequest):
            raise ParameterError(
                f"lora_request={shown(given)} must be a LoRARequest", param="lora_request"
            )
        return given

    @property
    def name(self) -> str:
        """Another name of ``lora_name``."""
        return self.lora_name

    @property
    def path(self) -> str | None:
        """Another name of ``lora_path``."""
        return self.lora_path
