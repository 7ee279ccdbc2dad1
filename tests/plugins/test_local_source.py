from pathlib import Path

import pytest

from octavo.errors import ConfigError, ModelError
from octavo_plugins.sources.local.source import LocalSource


def test_a_folder_is_found_by_absolute_relative_and_home_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (str(tmp_path / "org" / "model"), "org/model", "./org/model", "~/org/model"):
        assert LocalSource().find(name, revision=None) == tmp_path / "org" / "model"


@pytest.mark.parametrize("name", ["no/such", "~nobody-at-all/model", "nul\0byte", "long" * 5000])
def test_a_name_that_is_no_path_is_left_to_other_sources(name: str) -> None:
    assert LocalSource().find(name, revision=None) is None
    assert LocalSource().find(name, revision="main") is None


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="is a file; give the folder"):
        LocalSource().find(str(tmp_path / "model.safetensors"), revision=None)


def test_a_revision_of_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="revision='v2' has no meaning for the folder"):
        LocalSource().find(str(tmp_path), revision="v2")
