"""Items that come encoded: rows of the model's own, as tensors or as a safetensors file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from octavo_registry.faults import one_line
from octavo_registry.modalities import MediaError, MediaLimits

if TYPE_CHECKING:
    from torch import Tensor

MAX_TENSORS: Final = 8
HEADER_AT: Final = 8
"""Bytes before a file's header, which say how long that is."""
MAX_HEADER_BYTES: Final = 16_384
"""More would be thousands of tensors, each of which takes memory though it has no entries."""
DTYPES: Final = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
MAX_DIMS: Final = 8
"""Torch computes with no more than 64, and a file may say thousands."""
SUFFIX: Final = "_embeds"
"""Behind the modality, the name of an item's rows; others say what else a model needs."""


@dataclass(frozen=True, slots=True, eq=False)
class EncodedItem:
    """The value of an item that came encoded."""

    tensors: Mapping[str, Tensor]


def is_encoded(modality: str, given: Any) -> bool:
    """Whether a user of ``LLM`` gave rows: a dict that has them, or floats [rows, row size]."""
    if isinstance(given, Mapping):
        return f"{modality}{SUFFIX}" in given
    is_float = getattr(given, "is_floating_point", None)  # only torch's have it
    return callable(is_float) and given.ndim == 2 and bool(is_float())


class EncodedDecoder:
    """Reads such items of one modality, as a ModalityDecoder does."""

    def __init__(self, modality: str) -> None:
        self._rows = f"{modality}{SUFFIX}"

    def decode(self, data: bytes, limits: MediaLimits, options: Mapping[str, Any]) -> EncodedItem:
        """Read a safetensors file, which holds tensors and nothing that could be run."""
        from safetensors.torch import load

        limits.reserve(len(data))
        if int.from_bytes(data[:HEADER_AT], "little") > MAX_HEADER_BYTES:
            raise MediaError("it is no safetensors file of a few tensors")
        try:
            tensors = load(data)
        except Exception as error:
            raise MediaError(f"it is no safetensors file: {one_line(error)}") from error
        return self._checked(tensors)

    def convert(self, given: Any, limits: MediaLimits, options: Mapping[str, Any]) -> EncodedItem:
        """Take tensors by name, or the rows alone."""
        tensors = given if isinstance(given, Mapping) else {self._rows: given}
        return self._checked(tensors)

    def is_item(self, given: Sequence[Any]) -> bool:
        """No list is an item."""
        return False

    def content(self, value: EncodedItem) -> Iterator[bytes]:
        """Names, types, shapes and bytes."""
        import torch

        for name, tensor in sorted(value.tensors.items()):
            yield f"{name} {tensor.dtype} {list(tensor.shape)}:".encode()
            yield tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()

    def _checked(self, tensors: Mapping[str, Any]) -> EncodedItem:
        import torch

        if self._rows not in tensors:
            raise MediaError(f"it has no tensor {self._rows!r}")
        if len(tensors) > MAX_TENSORS:
            raise MediaError(f"it has {len(tensors)} tensors; at most {MAX_TENSORS}")
        for name, tensor in tensors.items():
            if not isinstance(tensor, torch.Tensor):
                raise MediaError(f"its {name!r} is a {type(tensor).__name__}; give a tensor")
            if tensor.ndim > MAX_DIMS:
                raise MediaError(f"its {name!r} has {tensor.ndim} axes; at most {MAX_DIMS}")
            kind = str(tensor.dtype).removeprefix("torch.")
            if kind not in DTYPES or not tensor.numel():
                raise MediaError(
                    f"its {name!r} is {kind} {list(tensor.shape)}; none may be empty, and types "
                    f"are {', '.join(DTYPES)}"
                )
            if not bool(tensor.float().isfinite().all()):  # as a model would read it
                raise MediaError(f"its {name!r} has entries that are not finite")
        rows = tensors[self._rows]
        if rows.ndim != 2 or not rows.is_floating_point():
            raise MediaError(
                f"its {self._rows!r} is {rows.dtype} {list(rows.shape)}; rows are floats "
                "[rows, row size]"
            )
        return EncodedItem(dict(tensors))
