import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from octavo.config import ModelConfig
from octavo.errors import ModelError, PluginError
from octavo.model_folder import open_model
from octavo.weights.load import load_model
from octavo_registry import (
    CacheSpec,
    ExpertsSite,
    MediaRows,
    ModelCapabilities,
    ModelSpec,
    PluginHost,
    Site,
    Step,
)


class Fake(nn.Module):
    """A matrix, a vector, and a head that config.json may tie to the matrix."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.matrix = nn.Parameter(torch.empty(2, 3, dtype=spec.dtype))
        self.vector = nn.Parameter(torch.empty(4, dtype=spec.dtype))
        tied = spec.config.get("tie_word_embeddings", False)
        self.head = self.matrix if tied else nn.Parameter(torch.empty(2, 3, dtype=spec.dtype))
        self.quantization = spec.quantization

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        parameters = dict(self.named_parameters(remove_duplicate=False))
        loaded = set()
        for name, tensor in tensors:
            if name not in parameters:
                raise ModelError("no parameter takes it")
            if name == "vector" and tensor.dim() == 0:
                raise ValueError("a bug of\nthe plugin")
            parameters[name].copy_(tensor)
            loaded.add(name)
        return loaded

    def cache_specs(self) -> dict[str, CacheSpec]:
        return {}

    def embed(self, tokens_T: Tensor, media: MediaRows | None) -> Tensor:
        return tokens_T

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        return x_TD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        return hidden_RD

    def finish_weights(self) -> None:
        if self.quantization is not None:
            self.quantization.finish(self)


class WithIntegers(Fake):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.register_parameter("counts", nn.Parameter(torch.ones(9).int(), requires_grad=False))


class WithManyMore(Fake):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.extra = nn.ParameterList(torch.empty(1) for _ in range(21))


class WithoutMethods(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()


class WithoutLogits(Fake):
    logits = None


class NotSoBig(Fake):
    def __init__(self, spec: ModelSpec) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory\nwith a long explanation")


class Negate:
    """A quantization whose repacking can be seen."""

    def __init__(self, config: Mapping[str, Any], model_config: Mapping[str, Any]) -> None:
        self.config, self.model_config = config, model_config

    def method_of(self, site: Site | ExpertsSite) -> None:
        raise NotImplementedError

    def finish(self, layer: nn.Module) -> None:
        layer.vector.neg_()


TENSORS = {
    "matrix": torch.arange(6.0).view(2, 3),
    "vector": torch.arange(4.0) + 0.1,
    "head": torch.ones(2, 3),
}


@pytest.fixture
def host() -> PluginHost:
    host = PluginHost()
    host.sources.add("local", "octavo_plugins.sources.local.source:LocalSource")
    for fake in (Fake, WithIntegers, WithManyMore, WithoutMethods, NotSoBig):
        host.models.add(fake.__name__, f"{__name__}:{fake.__name__}")
    host.models.add("Writes", f"{__name__}:WithoutLogits")
    reads = ModelCapabilities(tasks=("embed",))
    host.models.add("Reads", f"{__name__}:WithoutLogits", capabilities=reads)
    return host


def load(
    host: PluginHost,
    folder: Path,
    tensors: Mapping[str, Tensor] | None = None,
    *,
    architecture: str = "Fake",
    options: Mapping[str, Any] | None = None,
    **config: Any,
) -> Any:
    settings = {
        "architectures": [architecture],
        "vocab_size": 2,
        "max_position_embeddings": 8,
        "torch_dtype": "float32",
        **config,
    }
    (folder / "config.json").write_text(json.dumps(settings))
    if tensors is not None:
        save_file(dict(tensors), folder / "model.safetensors")
    model_config = ModelConfig(model=str(folder), **(options or {}))
    opened = open_model(model_config, host)
    return load_model(opened, host, config=model_config, device=torch.device("cpu"))


def test_a_model_is_built_from_its_folder_and_filled(host: PluginHost, tmp_path: Path) -> None:
    model = load(host, tmp_path, TENSORS, options={"max_model_len": 5}, own_entry=7)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, TENSORS[name])
        assert not parameter.requires_grad
    assert not model.training
    spec = model.spec
    assert (spec.architecture, spec.max_model_len, spec.dtype) == ("Fake", 5, torch.float32)
    assert spec.config["own_entry"] == 7


def test_tensors_in_several_files_reach_one_model(host: PluginHost, tmp_path: Path) -> None:
    for name, tensor in TENSORS.items():
        save_file({name: tensor}, tmp_path / f"{name}.safetensors")
    model = load(host, tmp_path)
    assert all(torch.equal(p, TENSORS[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_tensors_of_any_dtype_are_converted_as_they_are_loaded(
    host: PluginHost, tmp_path: Path, stored: torch.dtype, dtype: str
) -> None:
    tensors = {name: tensor.to(stored) for name, tensor in TENSORS.items()}
    model = load(host, tmp_path, tensors, options={"dtype": dtype})
    assert model.vector.dtype == getattr(torch, dtype)
    assert torch.equal(model.vector, tensors["vector"].to(model.vector.dtype))


@pytest.mark.parametrize("stored_as", ["matrix", "head"])
def test_a_tied_parameter_counts_as_loaded_under_either_name(
    host: PluginHost, tmp_path: Path, stored_as: str
) -> None:
    tensors = {"vector": TENSORS["vector"], stored_as: TENSORS["matrix"]}
    model = load(host, tmp_path, tensors, tie_word_embeddings=True)
    assert model.head is model.matrix
    assert torch.equal(model.head, TENSORS["matrix"])


def test_missing_tensors_are_listed(host: PluginHost, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="of Fake lack 2 parameters: matrix, head; the download"):
        load(host, tmp_path, {"vector": TENSORS["vector"]})
    with pytest.raises(ModelError, match=r"lack 23 parameters: matrix, head, .*7 and 13 more;"):
        load(host, tmp_path, {"vector": TENSORS["vector"]}, architecture="WithManyMore")


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"extra": torch.ones(1, 2)}, r"'extra' of shape \[1, 2\]: no parameter takes it"),
        ({"head": torch.ones(2, 4)}, r"'head' of shape \[2, 4\]: RuntimeError: The size of tensor"),
        (
            {"vector": torch.ones(())},
            r"'vector' of shape \[\]: ValueError: a bug of the plugin",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named_with_its_file(
    host: PluginHost, tmp_path: Path, tensors: dict[str, Tensor], reason: str
) -> None:
    with pytest.raises(ModelError, match=f"model.safetensors: tensor {reason}") as raised:
        load(host, tmp_path, TENSORS | tensors)
    assert "\n" not in str(raised.value)


def test_a_damaged_file_is_found_before_the_model_is_built(
    host: PluginHost, tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(ModelError, match=r"model\.safetensors is not a safetensors file"):
        load(host, tmp_path, architecture="NotSoBig")


def test_a_model_that_does_not_fit_the_device_is_one_line(host: PluginHost, tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"weights of NotSoBig in torch\.float32 do not fit on cpu"
    ):
        load(host, tmp_path, TENSORS, architecture="NotSoBig")


def test_a_class_that_is_no_model_names_its_plugin(host: PluginHost, tmp_path: Path) -> None:
    with pytest.raises(
        PluginError, match="plugin 'octavo': WithoutMethods, made for WithoutMethods"
    ):
        load(host, tmp_path, TENSORS, architecture="WithoutMethods")


def test_a_model_that_writes_has_logits_and_one_that_reads_needs_none(
    host: PluginHost, tmp_path: Path
) -> None:
    with pytest.raises(PluginError, match=r"WithoutLogits has no ``logits``.*task 'generate'"):
        load(host, tmp_path, TENSORS, architecture="Writes")
    assert load(host, tmp_path, TENSORS, architecture="Reads").logits is None


def test_a_model_that_raises_while_it_is_built_names_its_plugin(
    host: PluginHost, tmp_path: Path
) -> None:
    host.models.add("Raises", "operator:index")
    with pytest.raises(
        PluginError, match=r"plugin 'octavo' failed in building Raises from .*json: TypeErr"
    ):
        load(host, tmp_path, TENSORS, architecture="Raises")


def test_a_quantization_gets_its_config_and_finishes_each_layer(
    host: PluginHost, tmp_path: Path
) -> None:
    host.quantizations.add("negate", f"{__name__}:Negate")
    host.models.add(
        "Fake",
        f"{__name__}:Fake",
        capabilities=ModelCapabilities(quantizations=("negate",)),
        replace=True,
    )
    stored = {"quant_method": "negate", "bits": 1}
    model = load(host, tmp_path, TENSORS, quantization_config=stored)
    assert model.quantization.config == stored
    assert model.quantization.model_config["architectures"] == ["Fake"]
    assert torch.equal(model.vector, -TENSORS["vector"])


def dummy(host: PluginHost, folder: Path, seed: int = 0, dtype: str = "float32") -> Any:
    options = {"load_format": "dummy", "seed": seed, "dtype": dtype}
    return load(host, folder, architecture="WithIntegers", options=options)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dummy_weights_need_no_files_and_are_small(
    host: PluginHost, tmp_path: Path, dtype: str
) -> None:
    model = dummy(host, tmp_path, dtype=dtype)
    assert model.matrix.dtype == getattr(torch, dtype)
    assert 0 < model.matrix.abs().max() <= 1.01e-3
    assert model.counts.tolist() == [0] * 9


def test_dummy_weights_depend_on_seed_and_name_alone(host: PluginHost, tmp_path: Path) -> None:
    model, again, other = (dummy(host, tmp_path, seed) for seed in (3, 3, 4))
    assert torch.equal(model.vector, again.vector)
    assert not torch.equal(model.vector, other.vector)
    assert not torch.equal(model.matrix, model.head)
