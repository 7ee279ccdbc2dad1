"""Media that a request cannot have; the message begins with the item it is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from octavo.errors import BadRequestError
from octavo_registry.modalities import MediaError, MediaLimitError


class BadMediaError(BadRequestError, ValueError):
    """An item that cannot be read: not allowed, not found, damaged or of another kind."""

    param = "multi_modal_data"


class MediaTooLargeError(BadMediaError):
    """An item, or all items of a request, above a limit; over HTTP a 413."""


@contextmanager
def about(place: str) -> Iterator[None]:
    """Make the request's error of what goes wrong within with the item at this place."""
    try:
        yield
    except MediaLimitError as error:
        raise MediaTooLargeError(f"{place}: {error}") from error
    except MediaError as error:
        raise BadMediaError(f"{place}: {error}") from error
    except BadRequestError as error:
        raise type(error)(f"{place}: {error}", param=error.param) from error
