"""Names of models that lie in this package. examples/train_tiny* is how they were made."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Final

from octavo.errors import ConfigError, UnknownNameError

FOLDER: Final = Path(__file__).parent
MODELS: Final = {"octavo/tiny": FOLDER / "tiny", "octavo/tiny-omni": FOLDER / "tiny_omni"}


class EmbeddedSource:
    """Needs no network, and so goes before the hubs."""

    uses_network = False

    def find(self, name: str, *, revision: str | None) -> Path | None:
        """Return the model's folder; None for a name that is not in ``MODELS``.

        A name that is nearly one may be another source's; where it is nobody's, the user is told.
        """
        folder = MODELS.get(name)
        if folder is None and (close := get_close_matches(name, MODELS, cutoff=0.8)):
            raise UnknownNameError(f"with Octavo comes {close[0]!r}")
        if folder is not None and revision is not None:
            raise ConfigError(
                f"revision={revision!r} has no meaning for {name}, of which Octavo ships one "
                "version; leave it out"
            )
        return folder
