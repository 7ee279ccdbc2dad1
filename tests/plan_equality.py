"""A plan's bytes against those of the loaded model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from octavo.config import EngineConfig
from octavo.execution.memory_budget import budget_of
from octavo.execution.worker import Worker
from octavo.frontend.options import read_options
from octavo.model_folder import open_model
from octavo_registry import PluginHost


def config_of(folder: Path, **options: Any) -> EngineConfig:
    return read_options({"model": folder, "device": "cpu", **options}, caller="test").config


def real_bytes(model: nn.Module) -> int:
    """Of all storages that the model's modules hold in any way."""
    storages = {}
    for module in model.modules():
        for tensor in tensors_in(vars(module)):
            if tensor.is_mkldnn:  # packed for a CPU; shows no storage
                storages[id(tensor)] = tensor.numel() * tensor.element_size()
            else:
                storage = tensor.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def tensors_in(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)


def check_plan(folder: Path, host: PluginHost, **options: Any) -> None:
    config = config_of(folder, kv_cache_memory_gib=0.01, max_num_seqs=4, **options)
    budget = budget_of(config, host)
    worker = Worker(config, open_model(config.model, host), host)
    agreed = worker.start()
    runner = worker.runner
    assert budget.weight_bytes == pytest.approx(real_bytes(runner.model), rel=0.03)
    assert budget.cache_bytes == pytest.approx(runner.memory.pages.nbytes, rel=0.03)
    assert budget.num_blocks == agreed.num_blocks
    assert budget.max_model_len == agreed.max_model_len
