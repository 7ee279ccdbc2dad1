"""Builds a model on its device and fills every parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from octavo.config.engine import ModelConfig
from octavo.errors import ConfigError, ModelError, OctavoError, PluginError
from octavo.model_folder import ModelFolder
from octavo.weights.checkpoint import Checkpoint, open_checkpoint
from octavo.weights.dummy import fill_dummy
from octavo.weights.staging import staged_tensors
from octavo_registry import PluginHost
from octavo_registry.cache import CacheSpec
from octavo_registry.faults import one_line
from octavo_registry.layer_adapters import LayerAdapters
from octavo_registry.linear import Quantization
from octavo_registry.model import (
    FinishesWeights,
    Model,
    ModelSpec,
    SamplesTokens,
    has_common_kind,
)
from octavo_registry.ranks import ONE_RANK, Ranks

MAX_NAMES_SHOWN = 10
WRITING_TASKS = ("generate", "transcribe")
OWN_PREFIXES = (("", ""),)
_Renamed = tuple[Checkpoint, Sequence[tuple[str, str]]]
"""A checkpoint, and how names begin there and in the model."""


def load_model(
    folder: ModelFolder,
    host: PluginHost,
    *,
    config: ModelConfig,
    device: torch.device,
    ranks: Ranks = ONE_RANK,
    adapters: LayerAdapters | None = None,
    takes_cache: Callable[[CacheSpec], bool] = has_common_kind,
) -> Model:
    """Return the model with all weights loaded and gradients off, ready for ``forward``.

    Files are checked before the model is built, so that a damaged one fails at once.
    """
    dummy = config.load_format == "dummy"
    checkpoints = [] if dummy else _open_checkpoints(folder)
    model = build_model(
        folder,
        host,
        config=config,
        device=device,
        ranks=ranks,
        adapters=adapters,
        takes_cache=takes_cache,
    )
    with torch.no_grad():
        if dummy:
            fill_dummy(model, config.seed)
        else:
            _fill(model, checkpoints, folder, device)
        finish_layers(model)
    model.requires_grad_(False).eval()
    return cast(Model, model)


def build_model(
    folder: ModelFolder,
    host: PluginHost,
    *,
    config: ModelConfig,
    device: torch.device,
    ranks: Ranks = ONE_RANK,
    adapters: LayerAdapters | None = None,
    takes_cache: Callable[[CacheSpec], bool] = has_common_kind,
) -> nn.Module:
    """Return the model with its weights not filled; on the meta device they take no memory."""
    spec = ModelSpec(
        architecture=folder.architecture,
        config=folder.config,
        dtype=getattr(torch, folder.dtype),
        device=device,
        max_model_len=folder.max_model_len,
        tp_rank=ranks.tp_rank,
        tp_size=ranks.tp_size,
        collectives=ranks.collectives,
        first_layer=ranks.first_layer,
        last_layer=ranks.last_layer,
        quantization=_quantization(folder, host),
        generation_config=folder.generation_config,
        folder=folder.path,
        trust_remote_code=config.trust_remote_code,
        batch_invariant=config.batch_invariant,
        takes_cache=takes_cache,
        sees=None if folder.pooling is None else folder.pooling.sees,
        adapters=adapters,
    )
    if adapters is not None and not folder.capabilities.lora:
        raise ConfigError(
            f"{folder.architecture} takes no adapters; enable_lora is for those that do"
        )
    with torch.no_grad():
        return _build(spec, folder, host)


def _quantization(folder: ModelFolder, host: PluginHost) -> Quantization | None:
    if folder.quantization is None:
        return None
    return host.quantizations.make(folder.quantization, folder.quantization_config, folder.config)


def _build(spec: ModelSpec, folder: ModelFolder, host: PluginHost) -> nn.Module:
    model_class = host.models.load(folder.implementation)
    plugin = host.models.info(folder.implementation).plugin
    call = f"building {spec.architecture} from {folder.path / 'config.json'}"
    # The device context puts a plugin's plain torch layers on the device too.
    with host.faults.guard(plugin, call), spec.device:
        try:
            model: object = host.models.bind(folder.implementation, model_class)(spec)
        except torch.OutOfMemoryError as error:
            raise ModelError(
                f"the weights of {spec.architecture} in {spec.dtype} do not fit on {spec.device}; "
                "free its memory, use a 16-bit dtype, or spread the model over more devices"
            ) from error
    if not isinstance(model, nn.Module) or not isinstance(model, Model):
        raise PluginError(
            f"plugin {plugin!r}: {type(model).__name__}, made for {spec.architecture}, must be a "
            "torch.nn.Module with the methods of octavo_registry.Model"
        )
    if folder.task in WRITING_TASKS and not isinstance(model, SamplesTokens):
        raise PluginError(
            f"plugin {plugin!r}: {type(model).__name__} has no ``logits``, which "
            f"octavo_registry.SamplesTokens asks of models with the task {folder.task!r}"
        )
    return model


def _open_checkpoints(folder: ModelFolder) -> list[_Renamed]:
    """The model's own and those of its parts, with the prefixes of their names."""
    parts = [(open_checkpoint(path), part.prefixes) for path, part in folder.parts]
    return [(open_checkpoint(folder.path), OWN_PREFIXES), *parts]


def _fill(
    model: nn.Module, checkpoints: Sequence[_Renamed], folder: ModelFolder, device: torch.device
) -> None:
    stream = _Stream(checkpoints, device)
    try:
        loaded = cast(Model, model).load(stream)
    except Exception as error:
        ours = isinstance(error, OctavoError)
        if ours and stream.current is None:
            raise  # from reading a file, which it names
        reason = str(error) if ours else one_line(error)
        raise ModelError(f"{stream.place(reason) or folder.path}: {reason}") from error
    named = list(model.named_parameters(remove_duplicate=False))
    filled = {id(parameter) for name, parameter in named if name in loaded}  # either name of tied
    missing = [name for name, parameter in model.named_parameters() if id(parameter) not in filled]
    if missing:
        more = f" and {len(missing) - MAX_NAMES_SHOWN} more" * (len(missing) > MAX_NAMES_SHOWN)
        raise ModelError(
            f"{folder.path}: the weights of {folder.architecture} lack {len(missing)} parameters: "
            f"{', '.join(missing[:MAX_NAMES_SHOWN])}{more}; the download is not complete, or "
            "config.json belongs to another model"
        )
    if device.type == "cuda":
        torch.cuda.empty_cache()  # tensors that came by device; what is free becomes kv cache


def finish_layers(model: nn.Module) -> None:
    """Let each layer repack what was loaded."""
    for layer in list(model.modules()):
        if isinstance(layer, FinishesWeights):
            layer.finish_weights()


class _Stream:
    """Tensors of checkpoints; remembers the one in hand, so that an error can name its file.

    Of tensors of one name only the first comes.
    """

    def __init__(self, checkpoints: Sequence[_Renamed], device: torch.device) -> None:
        self.current: tuple[Path, str, Tensor] | None = None
        self._checkpoints, self._device = checkpoints, device

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        passed: set[str] = set()
        for checkpoint, prefixes in self._checkpoints:
            tensors = (
                staged_tensors(checkpoint, self._device)
                if self._device.type == "cuda"
                else checkpoint.tensors()
            )
            for path, theirs, tensor in tensors:
                name = _renamed(theirs, prefixes)
                if name is None or name in passed:
                    continue
                passed.add(name)
                self.current = path, theirs, tensor
                yield name, tensor
                self.current = None

    def place(self, reason: str) -> str:
        """File of the tensor in hand, and its name where ``reason`` leaves it out."""
        if self.current is None:
            return ""
        path, name, tensor = self.current
        named = repr(name) in reason
        return str(path) if named else f"{path}: tensor {name!r} of shape {list(tensor.shape)}"


def _renamed(name: str, prefixes: Sequence[tuple[str, str]]) -> str | None:
    for theirs, ours in prefixes:
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return None
