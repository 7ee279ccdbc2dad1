import json
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from octavo.errors import ModelError
from octavo.weights import read_header


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


def test_every_tensor_is_listed_in_the_order_of_its_bytes(tmp_path: Path) -> None:
    tensors = {
        "b": torch.zeros(3, 4, dtype=torch.bfloat16),
        "a": torch.zeros(()),
        "empty": torch.zeros(0, 5),
        "flags": torch.zeros(7, dtype=torch.bool),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    entries = read_header(tmp_path / "x.safetensors")
    assert {e.name: e.shape for e in entries} == {n: tuple(t.shape) for n, t in tensors.items()}
    assert {e.name: e.end - e.begin for e in entries} == {n: t.nbytes for n, t in tensors.items()}
    assert [e.begin for e in entries] == sorted(e.begin for e in entries)


@pytest.mark.parametrize(
    ("header", "data", "reason"),
    [
        ({"w": entry()}, b"1234567", "was cut: tensor 'w' ends at byte 8 of the data, which has 7"),
        ({"w": entry()}, b"123456789", "has 1 bytes after its last tensor"),
        ({"w": entry(data_offsets=[4, 12])}, b"\0" * 12, "'w' begins at byte 4, not 0"),
        (
            {"v": entry(), "w": entry(data_offsets=[4, 12])},
            b"\0" * 12,
            "'w' begins at byte 4, not 8",
        ),
        ({"w": entry(shape=[3])}, b"\0" * 8, r"'w' of F32 \[3\] cannot take 8 bytes"),
        ({"w": entry(dtype="Q4")}, b"\0" * 8, "'w' has the unknown dtype 'Q4'"),
        ({"w": entry(shape=[-2])}, b"\0" * 8, "'w' has a malformed header entry"),
        ({"w": entry(shape=[True, 2])}, b"\0" * 8, "'w' has a malformed header entry"),
        ({"w": entry(data_offsets=[0])}, b"\0" * 8, "'w' has a malformed header entry"),
        ({"w": entry(data_offsets=[8, 0])}, b"\0" * 8, "cannot take -8 bytes"),
        ({"w": 3}, b"", "'w' has a malformed header entry"),
        ({"w": entry(shape=[10**9] * 300_000)}, b"\0" * 8, "'w' has a shape that no tensor can"),
        ({"w": entry(shape=[0, 1 << 62, 2], data_offsets=[0, 0])}, b"", "'w' has a shape that no"),
        ({"w" * 2000: entry()}, b"\0" * 8, "has a name of 2000 characters"),
        ([1], b"", "its header is no JSON object"),
        (b"{{{{", b"", "its header is no JSON"),
        (b"\xff\xfe", b"", "its header is no JSON"),
        (b"[" * 200_000, b"", "its header is no JSON"),
        (b'{"w": 1, "w": 2}', b"", "names 'w' twice"),
    ],
)
def test_a_damaged_header_names_the_file_and_the_tensor(
    tmp_path: Path, header: Any, data: bytes, reason: str
) -> None:
    with pytest.raises(ModelError, match=reason) as raised:
        read_header(write(tmp_path / "x.safetensors", header, data))
    assert "x.safetensors" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 8, struct.pack("<Q", 50) + b"{}"])
def test_a_file_too_short_for_its_header_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="not a safetensors file, or was cut"):
        read_header(path)


def test_a_git_lfs_pointer_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    with pytest.raises(ModelError, match="run git lfs pull"):
        read_header(path)


def test_a_missing_file_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        read_header(tmp_path / "x.safetensors")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["F32", "F4", "BF16", "dtype", "shape", "data_offsets"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        | st.fixed_dictionaries({"dtype": inner, "shape": inner, "data_offsets": inner})
    ),
    max_leaves=12,
)
GOOD = struct.pack("<Q", 53) + b'{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}' + b"ab"


def assert_only_model_errors(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        path.write_bytes(content)
        try:
            entries = read_header(path)
        except ModelError:
            return
    assert sum(e.end - e.begin for e in entries) <= len(content)


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_read_or_refused(content: bytes) -> None:
    assert_only_model_errors(content)


@given(JSON, st.binary(max_size=16))
def test_arbitrary_json_headers_are_read_or_refused(header: Any, data: bytes) -> None:
    text = json.dumps(header).encode()
    assert_only_model_errors(struct.pack("<Q", len(text)) + text + data)


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.integers(0, len(GOOD)))
def test_a_good_file_with_one_byte_changed_or_cut_is_read_or_refused(
    position: int, byte: int, length: int
) -> None:
    changed = GOOD[:position] + bytes([byte]) + GOOD[position + 1 :]
    assert_only_model_errors(changed)
    assert_only_model_errors(GOOD[:length])
