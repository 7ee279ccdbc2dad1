"""A model's identity follows its content: not its place, nor the files that hold it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.config.engine import ModelConfig
from octavo.model_folder import open_model
from octavo.weights.identity import content_identity
from octavo_registry import PluginHost


@pytest.fixture(scope="module")
def host() -> PluginHost:
    return PluginHost.discover()


@pytest.fixture
def copy(host: PluginHost, tmp_path: Path) -> Path:
    """A folder of its own with the embedded model's files."""
    shipped = open_model(ModelConfig(model="octavo/tiny"), host).path
    return Path(shutil.copytree(shipped, tmp_path / "copy"))


def identity(host: PluginHost, model: str | Path, **options: object) -> str:
    config = ModelConfig(model=str(model), **options)
    return content_identity(open_model(config, host), host, config)


def test_copies_and_other_files_with_the_same_tensors_are_the_same_model(host, copy) -> None:
    shipped = identity(host, "octavo/tiny")
    assert identity(host, copy) == shipped
    (whole,) = copy.glob("*.safetensors")
    tensors = load_file(whole)
    names = sorted(tensors, reverse=True)
    whole.unlink()
    for index, part in enumerate((names[:5], names[5:])):
        save_file({name: tensors[name] for name in part}, copy / f"part{index}.safetensors")
    assert identity(host, copy) == shipped


def test_another_tensor_setting_or_dtype_is_another_model(host, copy) -> None:
    found = [identity(host, copy), identity(host, copy, dtype="float32")]
    found.append(identity(host, copy, max_model_len=64))
    found.append(identity(host, copy, hf_overrides={"rope_theta": 1234.0}))
    (file,) = copy.glob("*.safetensors")
    tensors = load_file(file)
    name = min(tensors)
    tensors[name].view(torch.uint8).view(-1)[-1] ^= 1
    save_file(tensors, file)
    found.append(identity(host, copy))
    assert len(set(found)) == len(found)


def test_code_of_the_folder_counts_where_it_may_run(host, copy) -> None:
    (copy / "modeling.py").write_text("A = 1")
    first, trusted = identity(host, copy), identity(host, copy, trust_remote_code=True)
    (copy / "modeling.py").write_text("A = 2")
    assert identity(host, copy) == first
    assert identity(host, copy, trust_remote_code=True) not in (first, trusted)


def test_of_made_up_weights_the_seed_counts_and_no_file_does(host, copy) -> None:
    made_up = {"load_format": "dummy", "dtype": "float32"}
    first = identity(host, copy, **made_up)
    for file in copy.glob("*.safetensors"):
        file.unlink()
    assert identity(host, copy, **made_up) == first
    assert identity(host, copy, **made_up, seed=1) != first
