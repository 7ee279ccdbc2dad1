"""Video: MP4, WebM, Matroska and GIF by PyAV, and frames that are decoded already."""

from __future__ import annotations

from octavo_registry import LazyRegistry, ModalityDecoder, hookimpl

OCTAVO_API = "1"


@hookimpl
def register_modalities(modalities: LazyRegistry[ModalityDecoder]) -> None:
    """Add "video"."""
    modalities.add(
        "video",
        "octavo_plugins.modalities.video.decoder:VideoDecoder",
        samples="octavo_plugins.modalities.video.conformance:samples",
    )
