"""Media of prompts: fetched, checked, decoded and named by their content, under limits."""

from octavo.multimodal.config import MediaConfig
from octavo.multimodal.errors import BadMediaError, MediaTooLargeError
from octavo.multimodal.fetch import MediaFetcher
from octavo.multimodal.given import GivenMedia
from octavo.multimodal.reader import MediaReader

__all__ = [
    "BadMediaError",
    "GivenMedia",
    "MediaConfig",
    "MediaFetcher",
    "MediaReader",
    "MediaTooLargeError",
]
