"""Write the versions that are installed here as constraints, a file for each Python.

    make lock    # in an environment whose tests have passed

What Octavo and its extras need is followed through the metadata of installed packages, with the
markers of each Python. torch is left out with all that only it needs, and triton, which each build
of torch wants in a version of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from email import message_from_bytes
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYTHONS = ("3.11", "3.12", "3.13")
LEFT_OUT = {"torch", "triton"}
FOLDER = Path(__file__).parent


def main() -> int:
    """Write all of the files."""
    for python in PYTHONS:
        pins = versions(python)
        lines = [f"{name}=={version}\n" for name, version in sorted(pins.items())]
        file = FOLDER / f"py{python.replace('.', '')}.txt"
        file.write_text("".join(lines))
        print(f"{file.name}: {len(lines)} packages")
    return 0


def versions(python: str) -> dict[str, str]:
    """All that ``octavo[dev]`` needs under a Python, and which version of it."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement("octavo[dev]")]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        new = {(name, extra) for extra in ("", *requirement.extras)} - seen
        if name in LEFT_OUT or not new:
            continue
        seen |= new
        version, needs = metadata_of(name, python)
        if name != "octavo":
            found[name] = version
        for need in needs:
            if any(applies(need, python, extra) for _, extra in new):
                waiting.append(need)
    return found


def applies(need: Requirement, python: str, extra: str) -> bool:
    """Whether a package needs this under a Python, with one of its extras or with none."""
    environment = {
        **default_environment(),
        "python_version": python,
        "python_full_version": f"{python}.0",
        "extra": extra,
    }
    return need.marker is None or need.marker.evaluate(environment)


def metadata_of(name: str, python: str) -> tuple[str, list[Requirement]]:
    """The version and the needs of a package; the index is asked for what another Python needs."""
    try:
        installed = distribution(name)
        version, needs = installed.version, installed.requires or []
    except PackageNotFoundError:
        version, needs = newest(name, python)
    return version, [Requirement(need) for need in needs]


def newest(name: str, python: str) -> tuple[str, list[str]]:
    """What pip would take for another Python."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [
                *(
                    sys.executable,
                    "-m",
                    "pip",
                    "download",
                    "-q",
                    "--no-deps",
                    "--only-binary=:all:",
                ),
                *("--python-version", python, "-d", scratch, name),
            ],
            check=True,
        )
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (file,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
            metadata = message_from_bytes(archive.read(file))
    return metadata["Version"], metadata.get_all("Requires-Dist") or []


if __name__ == "__main__":
    sys.exit(main())
