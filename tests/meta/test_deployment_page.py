"""docs/deployment.md: its systemd unit, its proxy and its commands fit the server."""

from __future__ import annotations

import shlex
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import crossplane
import pytest

from markdown import ROOT, code_blocks
from octavo.cli.doctor import DoctorCommand
from octavo.cli.parser import Parser, add_common_options
from octavo.cli.plan import PlanCommand
from octavo.cli.serve import ServeCommand
from octavo.config.server import LimitConfig
from octavo.errors import ConfigError

PAGE = ROOT / "docs" / "deployment.md"
COMMANDS = {"doctor": DoctorCommand, "plan": PlanCommand, "serve": ServeCommand}
(UNIT,) = code_blocks(PAGE, "ini")
(SITE,) = code_blocks(PAGE, "nginx")
TYPED = [
    shlex.split(line, comments=True)
    for block in code_blocks(PAGE, "sh")
    for line in block.splitlines()
]


def parsed(words: list[str]) -> Any:
    """What the command makes of its arguments; ConfigError where it does not know one."""
    _, name, *rest = words
    parser = Parser(prog=f"octavo {name}")
    COMMANDS[name]().configure(parser)
    add_common_options(parser)
    return parser.parse_args(rest)


@pytest.mark.parametrize("words", TYPED, ids=" ".join)
def test_a_command_has_flags_that_exist(words: list[str]) -> None:
    parsed(words)


def test_a_flag_that_is_unknown_is_found() -> None:
    with pytest.raises(ConfigError, match="--memori"):
        parsed(["octavo", "plan", "model", "--memori", "80"])


def unit() -> Any:
    reader = ConfigParser(interpolation=None)
    reader.optionxform = str
    reader.read_string(UNIT)
    return reader["Service"]


def test_the_unit_gives_the_server_time_to_drain_and_signals_it_alone() -> None:
    program, *words = shlex.split(unit()["ExecStart"])
    args = parsed(["octavo", *words])
    assert program.endswith("/bin/octavo")
    assert float(unit()["TimeoutStopSec"]) >= args.drain_timeout_seconds + 20
    assert unit()["KillMode"] == "mixed"
    assert unit()["Restart"] == "on-failure"


def test_the_unit_hands_over_keys_that_the_server_reads() -> None:
    args = parsed(["octavo", *shlex.split(unit()["ExecStart"])[1:]])
    credential, _, _ = unit()["LoadCredential"].partition(":")
    assert args.api_key_file == f"%d/{credential}"


def site(tmp_path: Path, text: str) -> Any:
    """The parsed directives of nginx; its own parser knows which may stand where."""
    path = tmp_path / "nginx.conf"
    path.write_text(f"events {{}}\nhttp {{\n{text}\n}}\n")
    found = crossplane.parse(str(path), strict=True, single=True)
    assert not found["errors"], [error["error"] for error in found["errors"]]
    return found["config"][0]["parsed"][1]["block"]


def directives(block: Any) -> dict[str, list[str]]:
    return {directive["directive"]: directive["args"] for directive in block}


def test_the_proxy_passes_streams_on_as_they_come(tmp_path: Path) -> None:
    upstream, server = site(tmp_path, SITE)
    locations = {tuple(d["args"]): d["block"] for d in server["block"] if "block" in d}
    everything = directives(locations["/",])
    assert everything["proxy_buffering"] == ["off"]
    assert everything["proxy_http_version"] == ["1.1"]
    assert everything["proxy_pass"] == [f"http://{upstream['args'][0]}"]
    assert directives(locations["=", "/metrics"])["deny"] == ["all"]


def test_the_proxy_takes_bodies_as_large_as_the_server_does(tmp_path: Path) -> None:
    _, server = site(tmp_path, SITE)
    assert directives(server["block"])["client_max_body_size"] == [
        f"{LimitConfig().max_body_mib:.0f}m"
    ]


def test_a_directive_that_nginx_does_not_know_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="unknown directive"):
        site(tmp_path, SITE.replace("proxy_buffering", "proxy_bufering"))
