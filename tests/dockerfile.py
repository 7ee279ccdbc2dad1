"""Reads a Dockerfile: its stages, their instructions, and what they take from where."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path


@dataclass
class Stage:
    """From one FROM to the next."""

    name: str
    origin: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def values(self, keyword: str) -> list[str]:
        return [rest for word, rest in self.instructions if word == keyword]


@dataclass
class Dockerfile:
    """All stages by name, and the arguments with their defaults (None where there is none)."""

    stages: dict[str, Stage]
    args: dict[str, str | None]

    @classmethod
    def read(cls, text: str) -> Dockerfile:
        file = cls({}, {})
        for word, rest in _instructions(text):
            if word == "ARG":
                name, _, default = rest.partition("=")
                file.args[name] = default.strip('"') or None
            if word == "FROM":
                origin, _, name = rest.partition(" AS ")
                file.stages[name] = Stage(name, file._filled(origin))
            elif file.stages:
                file.stages[list(file.stages)[-1]].instructions.append((word, rest))
        return file

    def lineage(self, target: str) -> list[Stage]:
        """The stage and those that it is made from, the nearest first."""
        stages = []
        while target in self.stages:
            stages.append(self.stages[target])
            target = self.stages[target].origin
        return stages

    def last(self, target: str, keyword: str) -> str:
        """What holds in the image that the target makes."""
        return next(v for stage in self.lineage(target) for v in reversed(stage.values(keyword)))

    def words(self, target: str, keyword: str) -> list[str]:
        """The same for an instruction that holds a JSON list of words."""
        return list(json.loads(self.last(target, keyword).partition("[")[2].join(["[", ""])))

    def base_images(self) -> list[str]:
        return [s.origin for s in self.stages.values() if s.origin not in self.stages]

    def context_paths(self) -> list[str]:
        """What is copied or lent from the build's context."""
        paths = []
        for stage in self.stages.values():
            for words in map(shlex.split, stage.values("COPY")):
                if not any(word.startswith("--from=") for word in words):
                    paths += [word for word in words[:-1] if not word.startswith("--")]
            for mount in _bind_mounts(stage):
                if "from" not in mount:
                    paths.append(mount["source"])
        return paths

    def lenders(self) -> list[tuple[str, str]]:
        """Pairs of a stage and another from which it takes files."""
        return [
            (stage.name, lender)
            for stage in self.stages.values()
            for lender in [
                *(m["from"] for m in _bind_mounts(stage) if "from" in m),
                *re.findall(r"--from=(\S+)", " ".join(stage.values("COPY"))),
            ]
        ]

    def _filled(self, text: str) -> str:
        return re.sub(r"\$\{(\w+)\}", lambda found: self.args[found[1]] or "", text)


def lets_through(ignore_file: Path, path: str) -> bool:
    """Whether a .dockerignore leaves a path in the context: the last line that matches decides."""
    passes = True
    parts = path.split("/")
    for line in ignore_file.read_text().splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        tails = parts if "**/" in line else [parts[0]]
        if line and not line.startswith("#") and any(fnmatchcase(t, pattern) for t in tails):
            passes = line.startswith("!")
    return passes


def _instructions(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    pairs = (line.split(None, 1) for line in joined.splitlines())
    return [(word, rest.strip()) for word, rest in pairs]


def _bind_mounts(stage: Stage) -> list[dict[str, str]]:
    mounts = re.findall(r"--mount=(\S+)", " ".join(stage.values("RUN")))
    fields = [dict(item.split("=", 1) for item in mount.split(",")) for mount in mounts]
    return [mount for mount in fields if mount["type"] == "bind"]
