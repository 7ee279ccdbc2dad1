"""Images: PNG, JPEG, WebP and the first frame of a GIF, decoded by Pillow."""

from __future__ import annotations

from octavo_registry import LazyRegistry, ModalityDecoder, hookimpl

OCTAVO_API = "1"


@hookimpl
def register_modalities(modalities: LazyRegistry[ModalityDecoder]) -> None:
    """Add "image"."""
    modalities.add(
        "image",
        "octavo_plugins.modalities.image.decoder:ImageDecoder",
        samples="octavo_plugins.modalities.image.conformance:samples",
    )
