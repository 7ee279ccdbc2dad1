"""Audio: WAV, FLAC, MP3 and Ogg by libsndfile, M4A by PyAV, resampled by soxr."""

from __future__ import annotations

from octavo_registry import LazyRegistry, ModalityDecoder, hookimpl

OCTAVO_API = "1"


@hookimpl
def register_modalities(modalities: LazyRegistry[ModalityDecoder]) -> None:
    """Add "audio"."""
    modalities.add(
        "audio",
        "octavo_plugins.modalities.audio.decoder:AudioDecoder",
        samples="octavo_plugins.modalities.audio.conformance:samples",
    )
