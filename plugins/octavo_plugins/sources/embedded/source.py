"""Names of models that lie in this package. examples/train_tiny* is how they were made."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Final

from octavo.errors import ConfigError, UnknownNameError
from octavo_plugins.sources.embedded.resolver import ADAPTERS

FOLDER: Final = Path(__file__).parent
MODELS: Final = {"octavo/tiny": FOLDER / "tiny", "octavo/tiny-omni": FOLDER / "tiny_omni"}


class EmbeddedSource:
    """Needs no network, and so goes before the hubs."""

    uses_network = False

    def find(self, name: str, *, revision: str | None) -> Path | None:
        """Return the model's folder; None for a name that is not in ``MODELS``.

        A name that is nearly one may be another source's; where it is nobody's, the user is told.
        """
        if name in ADAPTERS:
            raise ConfigError(
                f"{name} is an adapter: run its model with enable_lora, and name it in a request"
            )
        folder = MODELS.get(name)
        known = (*MODELS, *ADAPTERS)
        if folder is None and (close := get_close_matches(name, known, cutoff=0.8)):
            raise UnknownNameError(f"with Octavo comes {close[0]!r}")
        if folder is not None and revision is not None:
            raise ConfigError(
                f"revision={revision!r} has no meaning for {name}, of which Octavo ships one "
                "version; leave it out"
            )
        return folder
