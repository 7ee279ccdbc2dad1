"""Logging of the command line, the server's process and the engine's, as the environment asks."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.cli import main
from octavo.errors import ConfigError
from octavo.observability.logs import configure_logging, follow_level, logging_level

GENERATE = (
    "import sys, logging\n"
    "from octavo.cli import main\n"
    "code = main(['generate', 'octavo/tiny', 'Hello', '--max-tokens', '1', '--num-threads', '1'])\n"
    "logging.getLogger('octavo.access').info('after')\n"
    "sys.exit(code)"
)


def generate(**environment: str) -> str:
    """Run a command whose engine is in its own process; returns what it says besides its answer."""
    done = subprocess.run(
        [sys.executable, "-c", GENERATE],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture
def root_level():
    """The root logger's level and handlers are as before after the test."""
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    yield root
    root.setLevel(before[0])
    root.handlers[:] = before[1]


def test_the_level_of_the_environment_holds(root_level, monkeypatch: pytest.MonkeyPatch) -> None:
    root_level.handlers.clear()
    monkeypatch.setenv("OCTAVO_LOGGING_LEVEL", "debug")
    configure_logging(default="ERROR")
    assert root_level.level == logging.DEBUG


def test_without_one_the_default_holds_or_nothing_is_changed(root_level) -> None:
    root_level.handlers.clear()
    root_level.setLevel(logging.CRITICAL)
    configure_logging()
    assert (root_level.level, root_level.handlers) == (logging.CRITICAL, [])
    configure_logging(default="INFO")
    assert root_level.level == logging.INFO


def test_a_level_that_does_not_exist_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OCTAVO_LOGGING_LEVEL", "LOUD")
    assert main(["version"]) == 2
    assert capsys.readouterr().err == (
        "octavo: error: OCTAVO_LOGGING_LEVEL='LOUD' must be one of DEBUG, INFO, WARNING, ERROR, "
        "CRITICAL\n"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "Expecting"),
        ("[]", "mapping"),
        ('{"handlers": {"x": {"class": "no.such.Handler"}}}', "Unable to configure handler 'x'"),
    ],
    ids=["not JSON", "not an object", "no such handler"],
)
def test_a_config_file_that_is_wrong_is_an_error_that_names_it(
    text, says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "logging.json"
    file.write_text(text)
    monkeypatch.setenv("OCTAVO_LOGGING_CONFIG", str(file))
    with pytest.raises(ConfigError, match=rf"OCTAVO_LOGGING_CONFIG=.*logging.json: .*{says}"):
        configure_logging()


def test_a_config_file_silences_no_logger_that_exists_already(
    root_level, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = logging.getLogger("octavo.an_early_one")
    file = tmp_path / "logging.json"
    file.write_text(json.dumps({"root": {"level": "ERROR"}}))
    monkeypatch.setenv("OCTAVO_LOGGING_CONFIG", str(file))
    configure_logging(default="INFO")
    assert not early.disabled
    assert root_level.level == logging.ERROR
    monkeypatch.setenv("OCTAVO_LOGGING_LEVEL", "INFO")
    configure_logging()
    assert root_level.level == logging.INFO


def test_a_config_file_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_LOGGING_CONFIG", "/nowhere.json")
    with pytest.raises(ConfigError, match="No such file"):
        configure_logging()


def test_an_engine_takes_its_parents_level_unless_the_environment_has_one(
    root_level, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow_level(logging.ERROR)
    assert root_level.level == logging.ERROR
    monkeypatch.setenv("OCTAVO_LOGGING_LEVEL", "INFO")
    follow_level(logging.DEBUG)
    assert (root_level.level, logging_level()) == (logging.ERROR, "INFO")


@pytest.mark.slow
def test_a_config_file_holds_in_every_process(tmp_path: Path) -> None:
    log = tmp_path / "all.log"
    config = {
        "formatters": {"p": {"format": "%(process)d %(name)s %(levelname)s %(message)s"}},
        "handlers": {"f": {"class": "logging.FileHandler", "filename": str(log), "formatter": "p"}},
        "root": {"level": "DEBUG", "handlers": ["f"]},
    }
    (tmp_path / "logging.json").write_text(json.dumps(config))
    said = generate(OCTAVO_LOGGING_CONFIG=str(tmp_path / "logging.json"), DO_NOT_TRACK="1")
    lines = log.read_text().splitlines()
    names = {line.split()[1] for line in lines}
    assert any(name.startswith("octavo") for name in names)
    assert any(line.endswith("octavo.access INFO after") for line in lines)
    assert "DEBUG" not in said
