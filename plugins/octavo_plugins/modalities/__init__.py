"""Decoders of media, one plugin a modality."""
