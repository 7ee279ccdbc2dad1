"""The sources of model hubs, against a local server that behaves, and misbehaves, as hubs do."""

from __future__ import annotations

import fcntl
import json
import logging
import threading
from pathlib import Path
from typing import IO, Any

import pytest

from octavo.cli import main
from octavo.errors import ConfigError, ModelError, UnknownNameError
from octavo.testing.random_model import make_random_model
from octavo.weights import find_model
from octavo_plugins.sources.huggingface.source import HuggingFaceSource
from octavo_plugins.sources.modelscope.source import ModelScopeSource
from octavo_registry import PluginHost
from plugins.hub_stand_in import (
    CONFIG,
    FILES,
    TOKEN,
    WEIGHTS,
    Repository,
    commit_of,
    git_blob,
    sha256,
)

NEEDED = {
    "config.json",
    "tokenizer.json",
    "model.safetensors",
    "additional_chat_templates/tool_use.jinja",
}


def find(name: str = "org/model", revision: str | None = None) -> Path:
    path = HuggingFaceSource().find(name, revision=revision)
    assert path is not None
    return path


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_only_needed_files_come_in_the_layout_of_the_hubs_own_library(hub, tmp_path) -> None:
    folder = find()
    root = tmp_path / "hf" / "hub" / "models--org--model"
    assert folder == root / "snapshots" / commit_of("main")
    assert files_of(folder) == NEEDED
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert (root / "refs" / "main").read_text() == commit_of("main")
    assert (folder / "model.safetensors").readlink() == Path(f"../../blobs/{sha256(WEIGHTS)}")
    assert (root / "blobs" / git_blob(CONFIG)).read_bytes() == CONFIG


def test_the_hubs_own_library_finds_what_was_fetched(hub, tmp_path) -> None:
    import huggingface_hub  # slow to import; it comes with transformers

    folder = find()
    cache = tmp_path / "hf" / "hub"
    found = huggingface_hub.try_to_load_from_cache(
        "org/model", "model.safetensors", cache_dir=cache
    )
    assert Path(found) == folder / "model.safetensors"


def test_what_is_there_is_not_fetched_again(hub) -> None:
    folder = find()
    hub.requests.clear()
    assert find() == folder
    assert [path for path, _ in hub.requests] == ["/api/models/org/model/revision/main?blobs=true"]


def test_a_blob_of_another_revision_is_linked_and_not_fetched(hub) -> None:
    hub.repositories["org/model"].revisions["refs/pr/1"] = {**FILES, "config.json": b"{ }"}
    find()
    hub.requests.clear()
    folder = find(revision="refs/pr/1")
    assert folder.name == commit_of("refs/pr/1")
    assert (folder / "config.json").read_bytes() == b"{ }"
    assert hub.asked("model.safetensors") == []
    assert find(revision=commit_of("refs/pr/1")) == folder


def test_of_sharded_weights_those_in_the_index_come(hub) -> None:
    index = json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}).encode()
    names = {"config.json": CONFIG, "model.safetensors.index.json": index}
    weights = {f"{name}.safetensors": name.encode() for name in ("one", "two", "three")}
    hub.repositories["org/model"].revisions["main"] = names | weights
    assert files_of(find()) == {*names, "one.safetensors", "two.safetensors"}


def test_settings_of_sentence_transformers_modules_come_too(hub) -> None:
    needed = {
        *("config.json", "modules.json", "sentence_bert_config.json", "model.safetensors"),
        *("1_Pooling/config.json", "2_Dense/config.json"),
    }
    other = {
        *("onnx/config.json", "openvino/openvino_model.xml", "2_Dense/model.safetensors"),
        *("2_Dense/pytorch_model.bin", "1_Pooling/more/config.json", "data/1_Pooling/config.json"),
    }
    files = {name: name.encode() for name in needed | other}
    hub.repositories["org/model"].revisions["main"] = files
    assert files_of(find()) == needed


def test_an_index_of_missing_files_is_refused(hub) -> None:
    index = json.dumps({"weight_map": {"a": "gone.safetensors"}}).encode()
    hub.repositories["org/model"].revisions["main"] = {"model.safetensors.index.json": index}
    with pytest.raises(ModelError, match=r"names files that it does not hold \('gone.safe"):
        find()


def test_settings_come_without_weights_and_weights_later(hub) -> None:
    folder = HuggingFaceSource().find_settings("org/model", revision=None)
    assert files_of(folder) == NEEDED - {"model.safetensors"}
    assert find() == folder
    assert files_of(folder) == NEEDED


def test_a_cut_transfer_goes_on_where_it_was_cut(hub) -> None:
    hub.repositories["org/model"].cuts["model.safetensors"] = [100_000, 1, 1_500_000]
    assert (find() / "model.safetensors").read_bytes() == WEIGHTS
    ranges = [headers.get("Range") for headers in hub.asked("model.safetensors")]
    assert ranges == [None, "bytes=100000-", "bytes=100001-", "bytes=1600001-"]


def test_a_download_that_ended_is_resumed_by_the_next_process(hub, tmp_path) -> None:
    hub.repositories["org/model"].cuts["model.safetensors"] = [100_000, *[0] * 9]
    with pytest.raises(ModelError, match=r"cannot be reached for 'org/model'.*came so far is kept"):
        find()
    hub.repositories["org/model"].cuts.clear()
    hub.requests.clear()
    assert (find() / "model.safetensors").read_bytes() == WEIGHTS
    assert [h.get("Range") for h in hub.asked("model.safetensors")] == ["bytes=100000-"]


def test_a_server_without_ranges_starts_over(hub) -> None:
    hub.repositories["org/model"].no_ranges = True
    hub.repositories["org/model"].cuts["model.safetensors"] = [100_000]
    assert (find() / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_wrong_bytes_are_refused_and_deleted(hub, tmp_path, name) -> None:
    hub.repositories["org/model"].corrupt.add(name)
    with pytest.raises(ModelError, match=f"{name}: what came does not have the hash"):
        find()
    blobs = tmp_path / "hf" / "hub" / "models--org--model" / "blobs"
    digest = sha256(WEIGHTS) if name == "model.safetensors" else git_blob(CONFIG)
    assert not list(blobs.glob(f"{digest}*"))
    hub.repositories["org/model"].corrupt.clear()
    assert (find() / name).read_bytes() == FILES[name]


def test_a_partial_file_with_wrong_bytes_is_refused_too(hub, tmp_path) -> None:
    blobs = tmp_path / "hf" / "hub" / "models--org--model" / "blobs"
    blobs.mkdir(parents=True)
    partial = blobs / f"{sha256(WEIGHTS)}.incomplete"
    partial.write_bytes(b"x" * 1000)
    with pytest.raises(ModelError, match="was deleted; run this again"):
        find()
    assert not partial.exists()


def test_a_private_repository_needs_a_token_from_variable_or_file(
    hub, tmp_path, monkeypatch
) -> None:
    hub.repositories["org/model"].private = True
    with pytest.raises(UnknownNameError, match="If it is private, then set HF_TOKEN"):
        find()
    (tmp_path / "hf").mkdir(exist_ok=True)
    (tmp_path / "hf" / "token").write_text(f"{TOKEN}\n")
    find()
    monkeypatch.setenv("HF_TOKEN", "of somebody else")
    with pytest.raises(UnknownNameError, match="the token that is used may not read it"):
        find()


def test_a_token_goes_to_the_hub_alone_and_along_when_a_repository_moved(hub, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.on_storage = True
    hub.repositories["org/model"].private = True
    hub.repositories["old/name"] = Repository({}, moved_to="org/model")
    assert (find("old/name") / "model.safetensors").read_bytes() == WEIGHTS
    assert len(hub.asked("/storage/")) == 2
    assert all("Authorization" not in headers for headers in hub.asked("/storage/"))


def test_a_gated_repository_says_where_to_accept_its_terms(hub) -> None:
    hub.repositories["org/model"].gated = True
    with pytest.raises(ModelError, match=f"accept them at {hub.url}/org/model and set HF_TOKEN"):
        find()


def test_an_unknown_revision_is_told_apart_from_an_unknown_model(hub) -> None:
    with pytest.raises(ModelError, match="'org/model' has no revision 'v9'; its branches"):
        find(revision="v9")
    with pytest.raises(UnknownNameError, match="Hugging Face shows no model 'org/modl'"):
        find("org/modl")
    with pytest.raises(ModelError, match="is no branch, tag or commit"):
        find(revision="../../etc")


def test_an_unknown_model_is_asked_of_the_other_sources_and_the_reason_told(hub) -> None:
    host = PluginHost()
    host.sources.add("huggingface", f"{HuggingFaceSource.__module__}:HuggingFaceSource")
    with pytest.raises(ModelError, match="sources asked: huggingface; Hugging Face shows no model"):
        find_model(host, "org/other")
    assert find_model(host, "org/model").name == commit_of("main")


@pytest.mark.parametrize("name", ["a/b/c", "../x", "a--b/c", "C:\\model", "/abs/olute", "s3://b/c"])
def test_a_name_no_repository_can_have_is_left_to_other_sources(hub, name) -> None:
    assert HuggingFaceSource().find(name, revision=None) is None
    assert hub.requests == []


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "OCTAVO_OFFLINE"])
def test_offline_the_cache_answers_and_nothing_is_asked(hub, monkeypatch, variable) -> None:
    folder = find()
    hub.requests.clear()
    monkeypatch.setenv(variable, "1")
    assert find() == folder
    assert find(revision=commit_of("main")) == folder
    with pytest.raises(UnknownNameError, match=f"'v2' is not in .*{variable}=1 forbids to fetch"):
        find(revision="v2")
    assert hub.requests == []


def test_pickled_weights_are_named_and_left_there(hub, caplog) -> None:
    files = {"config.json": CONFIG, "pytorch_model.bin": b"a pickle"}
    hub.repositories["org/model"].revisions["main"] = files
    with caplog.at_level(logging.WARNING):
        assert files_of(find()) == {"config.json"}
    assert "weights only as pickle files (pytorch_model.bin)" in caplog.text


def test_a_full_disk_is_noticed_before_anything_is_fetched(hub, monkeypatch) -> None:
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(ModelError, match=r"needs 0\.0 GiB more, but its disk has 0\.0 GiB"):
        find()
    assert hub.asked("/resolve/") == []


def test_of_two_processes_one_fetches(hub, tmp_path) -> None:
    """The other one holds a blob's lock, and has written the blob when it lets go."""
    root = tmp_path / "hf" / "hub"
    locks, blobs = root / ".locks" / "models--org--model", root / "models--org--model" / "blobs"
    locks.mkdir(parents=True)
    blobs.mkdir(parents=True)
    found: list[Path] = []
    with (locks / f"{sha256(WEIGHTS)}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: found.append(find()))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        (blobs / sha256(WEIGHTS)).write_bytes(WEIGHTS)
    thread.join()
    assert (found[0] / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.asked("model.safetensors") == []


def test_one_who_waits_for_another_process_can_be_interrupted(hub, tmp_path) -> None:
    locks = tmp_path / "hf" / "hub" / ".locks" / "models--org--model"
    locks.mkdir(parents=True)
    hub.repositories["org/model"].corrupt.add("tokenizer.json")
    with (locks / f"{git_blob(CONFIG)}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ModelError, match=r"tokenizer\.json: what came does not have the hash"):
            find()


def test_a_server_that_sends_on_and_on_is_heard_no_longer_than_it_was_to_last(hub) -> None:
    hub.repositories["org/model"].too_long.add("model.safetensors")
    assert (find() / "model.safetensors").read_bytes() == WEIGHTS


def test_a_disk_that_fills_up_is_no_fault_of_the_network(hub, monkeypatch) -> None:
    def full(self: Path, mode: str = "r", *args: object, **more: object) -> IO[Any]:
        return open("/dev/full" if mode == "ab" else self, mode, *args, **more)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(ModelError, match=r"the cache .* cannot be written: .*No space left"):
        find()
    assert len(hub.asked("/resolve/")) <= len(NEEDED)


def test_a_cache_that_cannot_be_is_said_so(hub, tmp_path) -> None:
    (tmp_path / "hf").write_text("a file")
    with pytest.raises(ModelError, match=r"the cache .*hf/hub cannot be written"):
        find()


@pytest.mark.parametrize("token", [b"\xff\xfe", "hf_日本".encode(), b"hf_one\nhf_two"])
def test_a_token_that_is_none_is_never_shown_and_hinders_no_local_model(
    hub, tmp_path, token
) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_bytes(token)
    with pytest.raises(ConfigError, match="the token for Hugging Face is none") as caught:
        find()
    assert "hf_" not in str(caught.value)
    assert find_model(PluginHost.discover(), str(tmp_path)) == tmp_path


def test_an_endpoint_is_a_url_and_an_empty_one_is_none(hub, monkeypatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "localhost:80")
    with pytest.raises(ConfigError, match="'localhost:80' must begin with http:// or https://"):
        find()
    monkeypatch.setenv("HF_ENDPOINT", "")
    assert HuggingFaceSource().settings.endpoint == "https://huggingface.co"


@pytest.mark.parametrize("field", [{"lfs": [1]}, {"size": float("inf")}, {"blobId": "../evil"}])
def test_an_answer_in_another_form_is_refused(hub, monkeypatch, field) -> None:
    entry = {"rfilename": "config.json", "size": 0, "blobId": "0" * 40} | field
    answer = {"sha": commit_of("main"), "siblings": [entry]}
    monkeypatch.setattr("octavo_plugins.sources.hub.client.HubClient.json", lambda *_: answer)
    with pytest.raises(ModelError, match="answers in a form that is not known"):
        find()


def test_modelscope_is_asked_instead_when_the_environment_says_so(hub, monkeypatch) -> None:
    assert ModelScopeSource().find("org/model", revision=None) is None
    monkeypatch.setenv("OCTAVO_USE_MODELSCOPE", "1")
    assert HuggingFaceSource().find("org/model", revision=None) is None
    hub.repositories["org/model"].private = True
    with pytest.raises(UnknownNameError, match=r"ModelScope shows no model.*MODELSCOPE_API_TOKEN"):
        ModelScopeSource().find("org/model", revision=None)
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", TOKEN)
    hub.repositories["org/model"].cuts["model.safetensors"] = [100_000]
    folder = ModelScopeSource().find("org/model", revision=None)
    assert files_of(folder) == NEEDED
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    monkeypatch.setenv("OCTAVO_OFFLINE", "1")
    assert ModelScopeSource().find("org/model", revision="master") == folder


def test_modelscopes_wrong_bytes_are_refused(hub, monkeypatch) -> None:
    monkeypatch.setenv("OCTAVO_USE_MODELSCOPE", "1")
    hub.repositories["org/model"].corrupt.add("model.safetensors")
    with pytest.raises(ModelError, match="does not have the hash"):
        ModelScopeSource().find("org/model", revision=None)


def test_a_name_is_planned_for_without_its_weights_and_then_runs(hub, tmp_path, capsys) -> None:
    """The engine takes the folder that the front end has found, and asks the hub no more."""
    folder = make_random_model(tmp_path / "made", max_position_embeddings=128)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    hub.repositories["org/tiny"] = Repository({"main": files})
    assert main(["plan", "org/tiny"]) == 0
    assert hub.asked("model.safetensors") == []
    hub.requests.clear()
    flags = ["--revision", "main", "--max-tokens", "4", "--num-blocks", "64", "--json"]
    assert main(["generate", "org/tiny", "Once", *flags]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["outputs"][0]["num_tokens"] == 4
    assert len(hub.asked("/api/models/org/tiny")) == 1
    assert len(hub.asked("model.safetensors")) == 1
