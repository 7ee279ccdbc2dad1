"""A plugin whose attention reads encoded media themselves on any device, as a kernel does."""

from __future__ import annotations

from octavo_plugins.attention.torch.backend import TorchAttention
from octavo_registry import LazyRegistry, hookimpl
from octavo_registry.attention import AttentionBackend

OCTAVO_API = "1"


@hookimpl
def register_attention_backends(backends: LazyRegistry[AttentionBackend]) -> None:
    backends.add("rows", "row_reader:RowReader")


class RowReader(TorchAttention):
    fewest_media_rows = 16
