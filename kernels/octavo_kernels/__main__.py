"""Builds kernels ahead of time: python -m octavo_kernels build [--arch 90a ...] [--jobs N]."""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

from octavo_kernels.build import (
    ALL_ARCHES,
    PACKAGE,
    PREBUILT,
    KernelBuildError,
    KernelSpec,
    build,
    cache_folder,
    can_be_built_for,
)


def all_specs(only: list[str] | None = None) -> list[KernelSpec]:
    """The spec of each folder with CUDA sources, or of those named."""
    known = sorted({path.parent.name for path in PACKAGE.glob("*/*.cu")})
    if unknown := set(only or ()) - set(known):
        raise SystemExit(f"no kernel named {', '.join(unknown)}; known: {', '.join(known)}")
    return [import_module(f"octavo_kernels.{name}").SPEC for name in only or known]


def main() -> int:
    """Build and say what was built; 1 if something could not be."""
    parser = argparse.ArgumentParser(prog="python -m octavo_kernels", description=__doc__)
    parser.add_argument("command", choices=["build"])
    parser.add_argument(
        "--arch",
        action="append",
        help=f"{', '.join(ALL_ARCHES)}, or of a newer GPU (100, 120); default: all that are named",
    )
    parser.add_argument("--only", action="append", help="names of kernels; default: all")
    parser.add_argument("--cache", action="store_true", help="build into the cache of first use")
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="libraries compiled at the same time; default: one a core",
    )
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}; at least 1")
    for arch in options.arch or ():
        if not any(can_be_built_for(spec, arch) for spec in all_specs(options.only)):
            parser.error(f"--arch is {arch}, for which no kernel is")
    folder = cache_folder() if options.cache else PREBUILT
    work = [
        (spec, arch)
        for spec in all_specs(options.only)
        for arch in options.arch or ALL_ARCHES
        if can_be_built_for(spec, arch)
    ]

    def build_one(job: tuple[KernelSpec, str]) -> bool:
        spec, arch = job
        start = time.monotonic()
        try:
            path = build(spec, arch, folder)
        except KernelBuildError as error:
            print(f"{spec.name} sm_{arch}: {error}", file=sys.stderr)
            return False
        seconds = time.monotonic() - start
        print(f"{spec.name} sm_{arch}: {path} ({seconds:.1f} s)", flush=True)
        return True

    with ThreadPoolExecutor(options.jobs) as pool:
        return 0 if all(list(pool.map(build_one, work))) else 1


if __name__ == "__main__":
    sys.exit(main())
