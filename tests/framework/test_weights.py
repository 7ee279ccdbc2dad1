import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from octavo.errors import ModelError
from octavo.weights import find_model, open_checkpoint
from octavo_registry import PluginHost

A, B = torch.arange(4.0), torch.ones(2, 3, dtype=torch.bfloat16)


def write_index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def contents(folder: Path) -> dict[str, Tensor]:
    return {name: tensor.clone() for _, name, tensor in open_checkpoint(folder).tensors()}


def test_one_file_goes_before_an_index_and_an_index_before_other_files(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "part.safetensors")
    save_file({"b": B}, tmp_path / "unrelated.safetensors")
    assert set(contents(tmp_path)) == {"a", "b"}
    write_index(tmp_path, {"a": "part.safetensors"})
    assert set(contents(tmp_path)) == {"a"}
    save_file({"c": A}, tmp_path / "model.safetensors")
    assert set(contents(tmp_path)) == {"c"}


def test_tensors_come_as_stored_with_their_file(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "2.safetensors")
    save_file({"b": B}, tmp_path / "1.safetensors")
    streamed = [(path.name, name) for path, name, _ in open_checkpoint(tmp_path).tensors()]
    assert streamed == [("1.safetensors", "b"), ("2.safetensors", "a")]
    found = contents(tmp_path)
    assert torch.equal(found["a"], A)
    assert torch.equal(found["b"], B)
    assert found["b"].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("weight_map", "reason"),
    [
        ({"a": "gone.safetensors"}, "gone.safetensors is missing: .*index.json puts tensor 'a'"),
        ({"a": "x.safetensors", "z": "x.safetensors"}, "x.safetensors has no tensor 'z', which"),
        ({"a": "../x.safetensors"}, "tensor 'a' is in '../x.safetensors', not a file's name"),
        ({"a": 3}, "tensor 'a' is in 3, not a file's name"),
        ({"a": "n" * 5000}, "is missing"),
        ({}, "its weight_map is not an object"),
        ([], "its weight_map is not an object"),
    ],
)
def test_an_index_that_lies_names_file_and_tensor(
    tmp_path: Path, weight_map: object, reason: str
) -> None:
    save_file({"a": A}, tmp_path / "x.safetensors")
    write_index(tmp_path, weight_map)
    with pytest.raises(ModelError, match=reason):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_a_damaged_index_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(content)
    with pytest.raises(ModelError, match="is no index of weights"):
        open_checkpoint(tmp_path)


def test_a_tensor_in_two_shards_names_both(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "1.safetensors")
    save_file({"a": A, "b": B}, tmp_path / "2.safetensors")
    with pytest.raises(ModelError, match=r"'a' is in both 1\.safetensors and 2\.safetensors"):
        open_checkpoint(tmp_path)


def test_a_cut_shard_is_found_before_any_tensor_is_read(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "1.safetensors")
    save_file({"b": B}, tmp_path / "2.safetensors")
    whole = (tmp_path / "2.safetensors").read_bytes()
    (tmp_path / "2.safetensors").write_bytes(whole[:-1])
    with pytest.raises(ModelError, match=r"2\.safetensors was cut: tensor 'b' ends at byte 12"):
        open_checkpoint(tmp_path)


def test_a_folder_without_weights_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r'model\.safetensors.*index\.json.*load_format="dummy"'):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "x.pt", "last.ckpt"])
def test_pickled_weights_are_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04.")
    with pytest.raises(ModelError, match=f"only as {name}: pickle files are never opened"):
        open_checkpoint(tmp_path)


class Source:
    uses_network = False

    def find(self, name: str, *, revision: str | None) -> Path | None:
        if name == "broken":
            raise KeyError("oops")
        return Path(type(self).__name__, name, str(revision)) if name == "known" else None


class NetworkSource(Source):
    uses_network = True


@pytest.fixture
def host() -> PluginHost:
    host = PluginHost()
    host.sources.add("alpha", f"{__name__}:NetworkSource")
    host.sources.add("omega", f"{__name__}:Source")
    return host


def test_sources_off_the_network_are_asked_first(host: PluginHost) -> None:
    assert find_model(host, "known", "v1") == Path("Source/known/v1")


def test_a_name_no_source_knows_lists_all_asked_in_order(host: PluginHost) -> None:
    with pytest.raises(
        ModelError, match="no model 'other' at revision 'v2'; sources asked: omega, alpha; give the"
    ):
        find_model(host, "other", "v2")


def test_without_sources_the_error_says_so() -> None:
    with pytest.raises(ModelError, match="sources asked: none"):
        find_model(PluginHost(), "known")


def test_finding_and_checking_a_model_loads_no_torch() -> None:
    code = (
        "import sys, octavo.config, octavo.weights, octavo_plugins.sources.local.source; "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
