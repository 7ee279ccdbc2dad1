"""A model's name at a hub becomes a folder in the cache."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from octavo.errors import ModelError, OctavoError, UnknownNameError
from octavo.weights.checkpoint import INDEX_FILE
from octavo_plugins.sources.hub.cache import ModelCache
from octavo_plugins.sources.hub.client import HubClient, StatusError, UnreachableError
from octavo_plugins.sources.hub.download import download
from octavo_plugins.sources.hub.files import Listing

log = logging.getLogger(__name__)

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_NAME = re.compile(rf"{_PART}(/{_PART})?")
_REVISION = re.compile(rf"{_PART}(/{_PART})*")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSettings:
    """Where a hub is, and what the environment says about it."""

    title: str
    endpoint: str
    cache: Path
    default_revision: str
    secrets: dict[str, str]
    """Headers that prove who asks; empty: nobody in particular."""
    how_to_log_in: str
    offline_by: str | None = None
    """The variable that forbids the network; None: it may be used."""


class Hub(Protocol):
    """What differs between hubs."""

    @property
    def settings(self) -> HubSettings:
        """Where it is."""
        ...

    def listing_url(self, name: str, revision: str) -> str:
        """Where JSON about the files of a repository is."""
        ...

    def read_listing(self, answer: Any, name: str, revision: str) -> Listing:
        """Raises a LookupError, TypeError or the like where the answer has another form."""
        ...


def is_repository_name(name: str) -> bool:
    """Whether a hub could have a model of this name."""
    return _NAME.fullmatch(name) is not None and ".." not in name and "--" not in name


def find_at_hub(hub: Hub, name: str, revision: str | None, *, weights: bool = True) -> Path:
    """Return the model's snapshot with all that is needed of it, fetched if it is not there.

    Without ``weights`` only config, tokenizer and the like are fetched.
    """
    settings = hub.settings
    wanted = revision or settings.default_revision
    if not _REVISION.fullmatch(wanted) or ".." in wanted:
        raise ModelError(f"revision={wanted!r} is no branch, tag or commit")
    cache = ModelCache(settings.cache, name)
    cached = cache.find(wanted)
    if settings.offline_by is not None:
        if cached is None:
            raise UnknownNameError(
                f"{name!r} at revision {wanted!r} is not in {settings.cache}, and "
                f"{settings.offline_by} forbids to fetch it; unset that, or give a folder"
            )
        return cached
    try:
        listing = _list(hub, name, wanted, is_patient=cached is None)
        return _fetch(listing, HubClient(settings.secrets), cache, name, wanted, weights=weights)
    except (StatusError, UnreachableError) as error:
        if cached is None or not error.may_pass:
            raise _explained(error, settings, name, wanted) from error
        log.warning(
            "%s cannot be asked (%s): using %s as it is in the cache, %s",
            settings.title, error, name, cached,
        )  # fmt: skip
        return cached
    except OSError as error:
        raise ModelError(f"the cache {settings.cache} cannot be written: {error}") from error


def _list(hub: Hub, name: str, revision: str, *, is_patient: bool) -> Listing:
    url = hub.listing_url(name, revision)
    answer = HubClient(hub.settings.secrets, is_patient=is_patient).json(url)
    try:
        return hub.read_listing(answer, name, revision)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UnreachableError(f"{url} answers in a form that is not known") from error


def _fetch(
    listing: Listing,
    client: HubClient,
    cache: ModelCache,
    name: str,
    revision: str,
    *,
    weights: bool,
) -> Path:
    snapshot = cache.snapshot(listing.commit)
    download(listing.settings(), cache, listing.commit, client, title=f"{name} (settings)")
    if weights:
        index = snapshot / INDEX_FILE
        files = listing.weights(index if index.exists() else None)
        download(files, cache, listing.commit, client, title=name)
        if not files and listing.pickles():
            log.warning(
                "%s has weights only as pickle files (%s), which are never opened, as they can run "
                "code; choose a revision or repository with safetensors",
                name, listing.pickles()[0],
            )  # fmt: skip
    cache.name_commit(revision, listing.commit)
    return snapshot


def _explained(
    error: StatusError | UnreachableError, s: HubSettings, name: str, revision: str
) -> OctavoError:
    """What a refusal means and what to do about it."""
    if isinstance(error, UnreachableError):
        return ModelError(
            f"{s.title} at {s.endpoint} cannot be reached for {name!r}: {error}; give the path of "
            "a folder that is there, or try again (what came so far is kept)"
        )
    page = f"{s.endpoint}/{name}"
    if error.code == "GatedRepo" or error.status == 403:
        logged = "with the account whose token is used" if s.secrets else f"and {s.how_to_log_in}"
        return ModelError(
            f"{name!r} may be fetched only after its terms are accepted ({error}): "
            f"accept them at {page} {logged}"
        )
    if error.code == "RevisionNotFound":
        return ModelError(
            f"{name!r} has no revision {revision!r}; its branches and tags are at {page}"
        )
    if error.status in (401, 404):
        private = (
            "the token that is used may not read it" if s.secrets else f"then {s.how_to_log_in}"
        )
        return UnknownNameError(
            f"{s.title} shows no model {name!r} at revision {revision!r} ({error}); is it spelled "
            f"so? If it is private, {private}"
        )
    return ModelError(f"{s.title} refuses {name!r}: {error}; try again later")
