"""adapter_config.json: what of it changes the numbers, read strictly.

Its patterns are regular expressions of whoever wrote the file, so that all of them together get a
time limit.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import regex

from octavo.errors import AdapterError
from octavo.wording import listed, shown

MAX_CONFIG_BYTES: Final = 1 << 20
MAX_RANK: Final = 1 << 16
MAX_PATTERN_CHARS: Final = 16_384
PATTERN_SECONDS: Final = 1.0
"""What is spent of the processor's time, for all patterns of an adapter and all names."""
PLAIN: Final = regex.compile(r"[\w.-]+")

USED: Final = frozenset({
    "peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "target_modules",
    "exclude_modules", "layers_to_transform", "layers_pattern", "base_model_name_or_path", "bias",
    "init_lora_weights", "ensure_weight_tying", "target_parameters",
})  # fmt: skip
WITHOUT_EFFECT: Final = frozenset({
    "auto_mapping", "revision", "task_type", "inference_mode", "peft_version", "lora_dropout",
    "loftq_config", "eva_config", "corda_config", "lora_ga_config", "runtime_config",
    "megatron_core", "qalora_group_size",
    "fan_in_fan_out",
})  # fmt: skip
"""How it was trained, or which sort of thing the base's weights are; A and B stand the same way for
a weight that is stored as [in, out], so that fan_in_fan_out concerns only those who merge."""
HEAD: Final = "lm_head"
EXPERTS: Final = ("gate_up_proj", "down_proj")
"""Parameters that have the weights of all experts."""
CHANGES_BASE: Final = ("pissa", "corda", "olora", "loftq", "lora_ga")
"""Beginnings of init_lora_weights that take the adapter's first value off the base's weights."""


class Patterns:
    """One adapter's patterns, each compiled once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._compiled: dict[str, Any] = {}
        self._seconds_left = PATTERN_SECONDS

    def match(self, pattern: str, name: str) -> Any:
        """The match of a whole name, or None."""
        if len(pattern) > MAX_PATTERN_CHARS:
            raise self._refused(pattern, f"more than {MAX_PATTERN_CHARS} characters")
        began = time.thread_time()
        try:
            compiled = self._compiled.get(pattern)
            if compiled is None:
                compiled = self._compiled[pattern] = regex.compile(pattern)
            found = compiled.fullmatch(name, timeout=max(self._seconds_left, 0.01))
        except TimeoutError as error:
            raise self._too_slow(pattern) from error
        except (regex.error, RecursionError, OverflowError, MemoryError) as error:
            raise self._refused(pattern, str(error) or type(error).__name__) from error
        self._seconds_left -= time.thread_time() - began
        if self._seconds_left < 0:
            raise self._too_slow(pattern)
        return found

    def _too_slow(self, pattern: str) -> AdapterError:
        return self._refused(pattern, "it takes too long to compare; list the modules' names")

    def _refused(self, pattern: str, why: str) -> AdapterError:
        return AdapterError(f"{self._path}: the pattern {shown(pattern)}: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftSettings:
    """What of an adapter's config is computed with."""

    patterns: Patterns
    r: int
    alpha: float
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    use_rslora: bool
    target_modules: str | tuple[str, ...] | None
    target_parameters: tuple[str, ...]
    exclude_modules: str | tuple[str, ...]
    layers: tuple[int, ...]
    layers_pattern: tuple[str, ...]
    ensure_weight_tying: bool
    base_model: str | None

    def parameters_of(self, module: str) -> list[str]:
        """Parameters of a module that PEFT would adapt by their names, in the module's order."""
        is_stacked = module.rpartition(".")[2] == "experts"
        names = (f"{module}.{own}" for own in (EXPERTS if is_stacked else ("weight",)))
        return [name for name in names if self._names(self.target_parameters, name)]

    def rank(self, name: str) -> int:
        """The rank of one module."""
        return int(self._by_pattern(self.rank_pattern, name, self.r))

    def scaling(self, name: str) -> float:
        """What the product of one module's matrices is multiplied by."""
        rank = self.rank(name)
        alpha = self._by_pattern(self.alpha_pattern, name, self.alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def is_target(self, name: str) -> bool:
        """Whether PEFT would adapt the module."""
        if self._names(self.exclude_modules, name):
            return False
        if self.ensure_weight_tying and self._names((HEAD,), name):
            return True  # along with the embedding, which alone is named then
        targets = self.target_modules
        if targets is None or targets == "all-linear":
            return True
        if not self._names(targets, name):
            return False
        if isinstance(targets, str) or name in targets or not self.layers:
            return True
        patterns = self.layers_pattern or (r"[^.]*",)
        before = r".*?\." if not self.layers_pattern else r"(?:^|.*?\.)"
        for pattern in patterns:
            found = self.patterns.match(rf"{before}(?:{pattern})\.(?P<layer>\d+)\..*", name)
            if found is not None:
                return int(found["layer"]) in self.layers
        return False

    def listed_modules(self) -> tuple[str, ...]:
        """The list of target_modules; none where more than it says which are adapted."""
        if not isinstance(self.target_modules, tuple) or self.exclude_modules or self.layers:
            return ()
        return self.target_modules

    def _names(self, modules: str | tuple[str, ...], name: str) -> bool:
        """A text is a pattern; of a list each is a name or its end."""
        if isinstance(modules, str):
            return bool(modules) and self.patterns.match(modules, name) is not None
        return any(name == module or name.endswith(f".{module}") for module in modules)

    def _by_pattern(self, values: Mapping[str, float], name: str, default: float) -> float:
        """The value of the first pattern that the name has, or all of it behind a dot."""
        for pattern, value in values.items():
            if PLAIN.fullmatch(pattern):  # most are full names, one for each module
                if name == pattern or name.endswith(f".{pattern}"):
                    return value
            elif self.patterns.match(rf"(?:.*\.)?(?:{pattern})", name) is not None:
                return value
        return default


def read_settings(path: Path) -> PeftSettings:
    """Read and check; what is set and cannot be computed is an error that names it."""
    config = _read_object(path)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise AdapterError(f"{path}: peft_type={shown(kind)} is not supported; only LORA is")
    _check_supported(path, config)
    return PeftSettings(
        patterns=Patterns(path),
        r=_rank(path, "r", config.get("r", 8)),
        alpha=_number(path, "lora_alpha", config.get("lora_alpha", 8)),
        rank_pattern=_pattern(path, config, "rank_pattern", _rank),
        alpha_pattern=_pattern(path, config, "alpha_pattern", _number),
        use_rslora=_flag(path, config, "use_rslora"),
        target_modules=_text_or_names(path, config, "target_modules"),
        target_parameters=_names(path, config, "target_parameters"),
        exclude_modules=_text_or_names(path, config, "exclude_modules") or (),
        layers=_layers(path, config.get("layers_to_transform")),
        layers_pattern=_names(path, config, "layers_pattern"),
        ensure_weight_tying=_flag(path, config, "ensure_weight_tying"),
        base_model=_base_model(path, config.get("base_model_name_or_path")),
    )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_CONFIG_BYTES + 1)
        if len(text) > MAX_CONFIG_BYTES:
            raise AdapterError(f"{path} has more than {MAX_CONFIG_BYTES} bytes")
        config = json.loads(text)
    except OSError as error:
        raise AdapterError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{path} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise AdapterError(f"{path} is no JSON object but {type(config).__name__}")
    return config


def _check_supported(path: Path, config: Mapping[str, Any]) -> None:
    if (bias := config.get("bias", "none")) != "none":
        raise AdapterError(f"{path}: bias={shown(bias)} is not supported; train with bias='none'")
    start = config.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower().startswith(CHANGES_BASE):
        raise AdapterError(
            f"{path}: init_lora_weights={shown(start)} has changed the base model's weights; "
            "convert the adapter with PEFT's save_pretrained and "
            "path_initial_model_for_weight_conversion"
        )
    others = [
        f"{key}={shown(value)}"
        for key, value in config.items()
        if key not in USED and key not in WITHOUT_EFFECT and value
    ]
    if others:
        raise AdapterError(
            f"{path}: {listed(others)} is not supported, and would change the results; plain LoRA "
            "and rsLoRA on linears are"
        )


def _refused(path: Path, key: str, value: object, wanted: str) -> AdapterError:
    return AdapterError(f"{path}: {key}={shown(value)} must be {wanted}")


def _rank(path: Path, key: str, value: object) -> int:
    if type(value) is not int or not 0 < value <= MAX_RANK:
        raise _refused(path, key, value, f"an integer from 1 to {MAX_RANK}")
    return value


def _number(path: Path, key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
        raise _refused(path, key, value, "a finite number")
    return float(value)


def _flag(path: Path, config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key) or False
    if not isinstance(value, bool):
        raise _refused(path, key, value, "true or false")
    return value


def _pattern(path: Path, config: Mapping[str, Any], key: str, check: Any) -> dict[str, Any]:
    value = config.get(key) or {}
    if not isinstance(value, dict):
        raise _refused(path, key, value, "an object")
    return {
        pattern: check(path, f"{key}[{shown(pattern)}]", each) for pattern, each in value.items()
    }


def _text_or_names(path: Path, config: Mapping[str, Any], key: str) -> str | tuple[str, ...] | None:
    value = config.get(key)
    return value if value is None or isinstance(value, str) else _names(path, config, key)


def _names(path: Path, config: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = config.get(key) or []
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise _refused(path, key, value, "a text or a list of texts")
    return tuple(value)


def _layers(path: Path, value: object) -> tuple[int, ...]:
    layers: Iterable[object] = (
        [] if value is None else value if isinstance(value, list) else [value]
    )
    if not all(type(layer) is int for layer in layers):
        raise _refused(path, "layers_to_transform", value, "a number or a list of numbers")
    return tuple(layers)  # type: ignore[arg-type]


def _base_model(path: Path, value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise _refused(path, "base_model_name_or_path", value, "a text")
    return value or None
