"""The names of vLLM's that have a verdict here: flags of its server, routes and variables.

``python -m benchmarks.vllm_names WHEEL VERSION`` reads them from an unpacked wheel's folder
``vllm``, without running it, and writes ``benchmarks/vllm_names.txt``. Without arguments it writes
the verdicts on them, which ``octavo.vllm_names`` and ``octavo.server.http.absent`` hold, into
``docs/from-vllm.md``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from octavo.cli.parser import Parser, add_common_options
from octavo.cli.serve import ServeCommand
from octavo.server.http.absent import NO_REASON, OPTIONAL, why_absent
from octavo.vllm_names import as_flags, verdicts

PAGE: Final = Path(__file__).parents[1] / "docs" / "from-vllm.md"
BEGIN: Final = "<!-- python -m benchmarks.vllm_names writes what follows -->\n"
END: Final = "<!-- up to here -->\n"
KINDS: Final = {"renamed": "works", "noted": "noted", "refused": "refused"}
NAMES = Path(__file__).with_suffix(".txt")
Takes = Literal["nothing", "value", "values"]
FLAGS = {
    "engine/arg_utils.py": ("EngineArgs", "AsyncEngineArgs"),
    "entrypoints/openai/cli_args.py": ("BaseFrontendArgs", "FrontendArgs"),
}
"""Files of flags, and the classes in them whose fields say what a flag takes."""
NO_FIELDS = {"--headless": "nothing", "--grpc": "nothing", "--config": "value"}
"""Flags that no field stands behind."""
METHODS = ("get", "post", "put", "delete", "patch", "websocket")


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmFlag:
    """One flag of its server."""

    names: tuple[str, ...]
    """The long form, then short ones."""
    takes: Takes


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmNames:
    """What one version knows."""

    version: str
    flags: tuple[VllmFlag, ...]
    routes: tuple[str, ...]
    """Each with its method, such as ``POST /v1/completions``."""
    variables: tuple[str, ...]


def read_wheel(package: Path, version: str) -> VllmNames:
    """Read the folder ``vllm`` of an unpacked wheel."""
    found: dict[str, VllmFlag] = {}
    annotations = _annotations(package)
    for file, classes in FLAGS.items():
        tree = ast.parse((package / file).read_text())
        for names in _added(tree):
            found[names[0]] = VllmFlag(names=tuple(names), takes=_takes(names[0], annotations))
        for node in tree.body:
            if "Frontend" in getattr(node, "name", "") and getattr(node, "name", "") in classes:
                for name in _fields(node):
                    flag = "--" + name.replace("_", "-")
                    found[flag] = VllmFlag(names=(flag,), takes=_takes(flag, annotations))
    variables = re.findall(r'^    "(VLLM_\w+)":', (package / "envs.py").read_text(), re.MULTILINE)
    return VllmNames(
        version=version,
        flags=tuple(sorted(found.values(), key=lambda flag: flag.names)),
        routes=tuple(sorted(set(_routes(package / "entrypoints")), key=lambda r: r.split()[1])),
        variables=tuple(sorted(set(variables))),
    )


def read_names() -> VllmNames:
    """Read what has been written."""
    lines = [line.split() for line in NAMES.read_text().splitlines()]
    return VllmNames(
        version=next(line[1] for line in lines if line[0] == "version"),
        flags=tuple(
            VllmFlag(takes=line[1], names=tuple(line[2:]))  # type: ignore[arg-type]
            for line in lines
            if line[0] == "flag"
        ),
        routes=tuple(f"{line[1]} {line[2]}" for line in lines if line[0] == "route"),
        variables=tuple(line[1] for line in lines if line[0] == "variable"),
    )


def write_names(names: VllmNames) -> None:
    """Write one name a line."""
    lines = [f"version {names.version}"]
    lines += [f"flag {flag.takes} {' '.join(flag.names)}" for flag in names.flags]
    lines += [f"route {route}" for route in names.routes]
    lines += [f"variable {name}" for name in names.variables]
    NAMES.write_text("\n".join(lines) + "\n")


def _added(tree: ast.Module) -> Iterator[list[str]]:
    """The option strings of each call of ``add_argument``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
            names = sorted((str(t) for t in texts if str(t).startswith("-")), key=len, reverse=True)
            if names:
                yield names


def _fields(node: ast.AST) -> dict[str, str]:
    """The annotated names of a class, and their types as they are written."""
    return {
        statement.target.id: ast.unparse(statement.annotation)
        for statement in getattr(node, "body", ())
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def _annotations(package: Path) -> dict[str, str]:
    """The types of all fields of configurations; those of the classes of flags win."""
    made: dict[str, str] = {}
    for file in [*sorted((package / "config").glob("*.py")), *(package / each for each in FLAGS)]:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                fields = _fields(node)
                # EngineArgs refers to a configuration's own annotation by its name.
                made |= {n: t for n, t in fields.items() if n not in made or "Config." not in t}
    return made


def _takes(flag: str, annotations: dict[str, str]) -> Takes:
    name = flag[2:].replace("-", "_")
    if flag in NO_FIELDS:
        return "nothing" if NO_FIELDS[flag] == "nothing" else "value"
    kind = annotations.get(name, "str")
    if re.search(r"\b(list|set|tuple)\[", kind) and "dict" not in kind:
        return "values"
    return "nothing" if re.search(r"\bbool\b", kind) and "str" not in kind else "value"


def _routes(folder: Path) -> Iterator[str]:
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for call in node.decorator_list:
                    if isinstance(call, ast.Call) and call.args:
                        method = getattr(call.func, "attr", "")
                        path = getattr(call.args[0], "value", None)
                        if method in METHODS and isinstance(path, str) and path.startswith("/"):
                            yield f"{method.upper()} {path}"


def same_flags(names: VllmNames) -> list[str]:
    """Its flags that are ours, too."""
    parser = Parser(prog="octavo serve")
    ServeCommand().configure(parser)
    add_common_options(parser)
    ours = {*parser.option_names(), "--model"}
    return [flag.names[0] for flag in names.flags if flag.names[0] in ours]


def tables(names: VllmNames) -> str:
    """The part of the page that is written here: a verdict on each flag and each route."""
    known = {flag.names[0] for flag in names.flags}
    told: dict[tuple[str, str], list[str]] = {}
    for verdict in verdicts():
        flag = "--" + verdict.name.replace("_", "-")
        if flag in known and flag not in same_flags(names):
            told.setdefault((KINDS[verdict.kind], _shown(verdict.text)), []).append(f"`{flag}`")
    lines = ["", "| flags | verdict | here |", "|---|---|---|"]
    same = ", ".join(f"`{flag}`" for flag in same_flags(names))
    lines += [f"| {same} | work | the same |"]
    lines += [f"| {', '.join(sorted(f))} | {kind} | {text} |" for (kind, text), f in told.items()]
    lines += ["", "| routes | verdict | here |", "|---|---|---|"]
    by_reason: dict[tuple[str, str], list[str]] = {}
    for route in names.routes:
        by_reason.setdefault(_route_verdict(route.split()[1]), []).append(f"`{route}`")
    lines += [f"| {', '.join(r)} | {kind} | {text} |" for (kind, text), r in by_reason.items()]
    return "\n".join(lines) + "\n\n"


def _shown(text: str) -> str:
    """A text of the verdicts with its flags as code."""
    return re.sub(r"(--[\w.-]*\w)", r"`\1`", as_flags(text))


def _route_verdict(path: str) -> tuple[str, str]:
    reason = why_absent(path)
    if reason == NO_REASON:
        return "works", "the same"
    return ("works" if reason in OPTIONAL else "404", OPTIONAL.get(reason, reason))


def with_tables(page: str, names: VllmNames) -> str:
    """The page with its written part made anew."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{tables(names)}{END}{rest.partition(END)[2]}"


def main(args: list[str]) -> None:
    """Write the names, or the page."""
    if args:
        folder, version = args
        write_names(read_wheel(Path(folder), version))
    PAGE.write_text(with_tables(PAGE.read_text(), read_names()))


if __name__ == "__main__":
    main(sys.argv[1:])
