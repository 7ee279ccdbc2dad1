"""Adapters over HTTP: named as models, loaded and unloaded while the server answers."""

from __future__ import annotations

import json
import shutil
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from safetensors.torch import save_file

from live_server import LiveServer, running_server
from octavo_plugins.sources.embedded.source import MODELS

PROMPT = "The capital of France is"


def write_adapter(folder: Path, seed: int, *, rank: int = 8, base: str | None = None) -> Path:
    """Random matrices for all queries and values of octavo/tiny, strong enough to be seen."""
    config = json.loads((MODELS["octavo/tiny"] / "config.json").read_text())
    hidden = config["hidden_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    sizes = {
        "q_proj": head * config["num_attention_heads"],
        "v_proj": head * config["num_key_value_heads"],
    }
    torch.manual_seed(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, size in sizes.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{prefix}.lora_A.weight"] = torch.randn(rank, hidden) / 4
            tensors[f"{prefix}.lora_B.weight"] = torch.randn(size, rank) / 4
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    entries = {
        "peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": [*sizes],
        "base_model_name_or_path": base,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(entries))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("adapters")
    write_adapter(root / "static", 1, base="org/other")
    write_adapter(root / "watched" / "seen", 2, rank=4)
    write_adapter(root / "allowed" / "first", 3)
    write_adapter(root / "allowed" / "second", 4)
    write_adapter(root / "outside", 5)
    return root


@pytest.fixture(scope="module")
def http(folders: Path) -> Iterator[httpx.Client]:
    static = {"name": "fixed", "path": str(folders / "static"), "base_model_name": "org/other"}
    flags = (
        "--enable-lora", "--lora-modules", json.dumps(static),
        "--lora-modules", "pirate=octavo/tiny-pirate",
        "--lora-dir", str(folders / "watched"),
        "--allow-runtime-lora", "--allowed-lora-path", str(folders / "allowed"),
    )  # fmt: skip
    with running_server(folders / "log", *flags) as server, server.client() as client:
        yield client


@pytest.fixture
def loaded(http: httpx.Client, folders: Path) -> Iterator[str]:
    """An adapter that a request has loaded."""
    load(http, "mine", folders / "allowed" / "first")
    yield "mine"
    http.post("/v1/unload_lora_adapter", json={"lora_name": "mine"})


def load(http: httpx.Client, name: str, path: object, **more: Any) -> httpx.Response:
    body = {"lora_name": name, "lora_path": str(path), **more}
    return http.post("/v1/load_lora_adapter", json=body)


def answer(http: httpx.Client, model: str, **more: Any) -> str:
    body = {"model": model, "prompt": PROMPT, "temperature": 0, "max_tokens": 12, **more}
    response = http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    assert response.json()["model"] == model
    return response.json()["choices"][0]["text"]


def cards(http: httpx.Client) -> dict[str, Any]:
    return {card["id"]: card for card in http.get("/v1/models").json()["data"]}


def test_models_list_adapters_with_root_and_parent(http, folders, loaded) -> None:
    found = cards(http)
    assert list(found) == ["octavo/tiny", "fixed", "mine", "pirate", "seen"]
    assert found["octavo/tiny"]["parent"] is None
    assert (found["fixed"]["root"], found["fixed"]["parent"]) == (
        str(folders / "static"), "org/other",
    )  # fmt: skip
    assert (found["seen"]["root"], found["seen"]["parent"]) == (
        str(folders / "watched" / "seen"), "octavo/tiny",
    )  # fmt: skip
    assert found["mine"]["root"] == str(folders / "allowed" / "first")
    assert http.get("/v1/models/fixed").json() == found["fixed"]


def test_the_pirate_that_ships_answers_by_both_of_its_names(http) -> None:
    said = {"messages": [{"role": "user", "content": "What is the capital of Italy?"}]}
    answers = []
    for name in ("octavo/tiny", "pirate", "octavo/tiny-pirate"):
        body = {"model": name, "temperature": 0, **said}
        chat = http.post("/v1/chat/completions", json=body).json()
        answers.append(chat["choices"][0]["message"]["content"])
    pirate = "Arr! The capital o' Italy be Rome, matey!"
    assert answers == ["The capital of Italy is Rome.", pirate, pirate]
    header = {"X-Amzn-SageMaker-Adapter-Identifier": "pirate"}
    named = http.post("/invocations", json={"temperature": 0, **said}, headers=header).json()
    assert (named["model"], named["choices"][0]["message"]["content"]) == ("pirate", pirate)


@pytest.mark.slow
def test_each_route_answers_with_the_model_that_is_named(http, loaded) -> None:
    names = ["octavo/tiny", "fixed", "seen", "mine"]
    assert len({answer(http, name) for name in names}) == 4
    chats, messages, responses = set(), set(), set()
    said = [{"role": "user", "content": "Tell me a story."}]
    for name in names:
        body = {"model": name, "messages": said, "max_tokens": 12}
        chat = http.post("/v1/chat/completions", json={**body, "temperature": 0}).json()
        assert chat["model"] == name
        chats.add(chat["choices"][0]["message"]["content"])
        message = http.post("/v1/messages", json={**body, "temperature": 0}).json()
        messages.add(message["content"][0]["text"] if message["content"] else "")
        given = {"model": name, "input": "Tell me a story.", "max_output_tokens": 12}
        response = http.post("/v1/responses", json={**given, "temperature": 0, "store": False})
        responses.add(json.dumps([part.get("content") for part in response.json()["output"]]))
        tokens = http.post("/tokenize", json={"model": name, "prompt": PROMPT})
        assert tokens.status_code == 200
    assert [len(chats), len(messages)] == [4, 4]
    assert len(responses) == 4


@pytest.mark.slow
def test_answers_are_the_same_alone_and_beside_others(http, loaded) -> None:
    names = ["octavo/tiny", "fixed", "seen", "mine"] * 3
    alone = {name: answer(http, name) for name in names}
    found: list[tuple[str, str]] = []
    threads = [
        threading.Thread(target=lambda name=name: found.append((name, answer(http, name))))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(names)
    assert all(text == alone[name] for name, text in found)


def test_an_adapter_comes_goes_and_is_replaced_in_place(http, folders) -> None:
    path = folders / "allowed"
    assert load(http, "mine", path / "first").json() == {"lora_name": "mine", "loaded": True}
    first = answer(http, "mine")
    again = load(http, "mine", path / "second")
    assert (again.status_code, again.json()["error"]["param"]) == (409, "lora_name")
    assert answer(http, "mine") == first
    assert load(http, "mine", path / "second", load_inplace=True).status_code == 200
    second = answer(http, "mine")
    assert second != first
    assert load(http, "mine", "first", load_inplace=True).status_code == 200  # below the folder
    assert answer(http, "mine") == first
    gone = http.post("/v1/unload_lora_adapter", json={"lora_name": "mine", "lora_int_id": 3})
    assert gone.json() == {"lora_name": "mine", "loaded": False}
    assert "mine" not in cards(http)
    for status, response in (
        (404, http.post("/v1/unload_lora_adapter", json={"lora_name": "mine"})),
        (404, http.post("/v1/completions", json={"model": "mine", "prompt": PROMPT})),
    ):
        assert response.status_code == status
        assert response.json()["error"]["code"] == "model_not_found"


def test_a_name_that_is_looked_up_is_taken_too_and_is_looked_up_again_behind_another(
    http, folders
) -> None:
    other = folders / "allowed" / "first"
    assert load(http, "seen", other).status_code == 409
    seen = answer(http, "seen")
    assert load(http, "seen", other).status_code == 409
    assert load(http, "seen", other, load_inplace=True).status_code == 200
    assert answer(http, "seen") != seen
    assert http.post("/v1/unload_lora_adapter", json={"lora_name": "seen"}).status_code == 200
    assert answer(http, "seen") == seen


@pytest.mark.slow
def test_a_stream_goes_on_with_the_adapter_that_is_unloaded_under_it(http, loaded) -> None:
    whole = answer(http, "mine", max_tokens=100, ignore_eos=True)
    body = {
        "model": "mine", "prompt": PROMPT, "temperature": 0, "max_tokens": 100, "stream": True,
        "ignore_eos": True,
    }  # fmt: skip
    text = ""
    with http.stream("POST", "/v1/completions", json=body) as response:
        lines = (line for line in response.iter_lines() if line.startswith("data: {"))
        for number, line in enumerate(lines):
            if number == 0:
                gone = http.post("/v1/unload_lora_adapter", json={"lora_name": "mine"})
                assert gone.status_code == 200
            text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
    assert text == whole


def test_a_watched_folder_counts_as_soon_as_it_is_there(http, folders) -> None:
    assert "late" not in cards(http)
    response = http.post("/v1/completions", json={"model": "late", "prompt": PROMPT})
    assert response.status_code == 404
    write_adapter(folders / "watched" / "late", 6)
    assert "late" in cards(http)
    assert answer(http, "late") != answer(http, "octavo/tiny")
    shutil.rmtree(folders / "watched" / "late")


def test_a_watched_folder_that_is_replaced_or_removed_counts_so_from_the_next_request_on(
    http, folders
) -> None:
    folder = write_adapter(folders / "watched" / "moving", 31)
    first = answer(http, "moving")
    assert answer(http, "moving") == first
    loads = measured(http, "adapter_loads_total")
    write_adapter(folders / "new", 32)
    for file in (folders / "new").iterdir():
        file.replace(folder / file.name)
    second = answer(http, "moving")
    assert second != first
    assert answer(http, "moving") == second
    assert measured(http, "adapter_loads_total")[""] == loads[""] + 1
    shutil.rmtree(folder)
    response = http.post("/v1/completions", json={"model": "moving", "prompt": PROMPT})
    assert response.status_code == 404


def cut(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:500])


def huge_header(folder: Path) -> None:
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", 1 << 63))


def pickled(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.bin").write_bytes(b"cos\nsystem\n.")


def not_a_number(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    data = bytearray(path.read_bytes())
    data[-4:] = struct.pack("<f", float("nan"))
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (cut, "was cut"),
        (huge_header, "announces a header of 9223372036854775808"),
        (pickled, "pickle files are never opened"),
        (not_a_number, "not finite in model.layers."),
        (lambda folder: (folder / "adapter_config.json").unlink(), "no adapter of a known format"),
    ],
)
def test_a_broken_adapter_is_a_400_and_what_runs_is_untouched(
    spoil, words, http, folders, loaded
) -> None:
    expected = answer(http, "mine")
    folder = write_adapter(folders / "allowed" / "broken", 7)
    try:
        spoil(folder)
        for name, more in (("bad", {}), ("mine", {"load_inplace": True})):
            response = load(http, name, folder, **more)
            assert response.status_code == 400, response.text
            error = response.json()["error"]
            assert error["param"] == "lora_path"
            assert words in error["message"]
            assert str(folders) not in error["message"]
    finally:
        shutil.rmtree(folder)
    assert "bad" not in cards(http)
    assert answer(http, "mine") == expected


def test_paths_outside_look_like_paths_that_are_not_there(http, folders) -> None:
    (folders / "allowed" / "link").symlink_to(folders / "outside")
    messages = set()
    for path in (
        folders / "outside", "../outside", folders / "allowed" / "link", folders / "none", "/etc",
        "org/adapter", "~", "\0", "octavo/tiny",
    ):  # fmt: skip
        response = load(http, "bad", path)
        assert response.status_code == 404, (path, response.text)
        error = response.json()["error"]
        messages.add(error["message"].partition(":")[2])
    (folders / "allowed" / "link").unlink()
    assert len(messages) == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"lora_name": "octavo/tiny", "lora_path": "first"}, 409),
        ({"lora_name": "seen", "lora_path": "first"}, 409),
        ({"lora_name": "", "lora_path": "first"}, 400),
        ({"lora_name": "a\u202eb", "lora_path": "first"}, 400),
        ({"lora_name": "a\nb", "lora_path": "first"}, 400),
        ({"lora_name": "a" * 200, "lora_path": "first"}, 400),
        ({"lora_name": "x"}, 400),
        ({"lora_name": 5, "lora_path": "first"}, 400),
        ({"lora_name": "x", "lora_path": "first", "is_3d_lora_weight": True}, 400),
        ({"lora_name": "x", "lora_path": "first", "load_in_place": True}, 400),
    ],
)
def test_a_body_that_cannot_be_followed_is_refused(body, status, http) -> None:
    response = http.post("/v1/load_lora_adapter", json=body)
    assert response.status_code == status, response.text
    assert response.json()["error"]["message"]


def test_a_field_of_vllms_that_asks_for_what_the_files_say_is_told_so(http) -> None:
    body = {"lora_name": "x", "lora_path": "first", "is_3d_lora_weight": True}
    message = http.post("/v1/load_lora_adapter", json=body).json()["error"]["message"]
    assert "how matrices of experts lie is read from the adapter's files" in message


@pytest.mark.parametrize(
    "name", ["none", "first", "../static", "watched/seen", "/etc", "a\nb", "x" * 999]
)
def test_a_model_that_is_no_adapter_is_a_404(name, http) -> None:
    response = http.post("/v1/completions", json={"model": name, "prompt": PROMPT})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert "adapters that /v1/models lists" in response.json()["error"]["message"]


def measured(http: httpx.Client, metric: str) -> dict[str, float]:
    """A metric's values by adapter, or by "" alone."""
    families = text_string_to_metric_families(http.get("/metrics").text)
    samples = [s for f in families for s in f.samples]
    return {s.labels.get("adapter", ""): s.value for s in samples if s.name == f"octavo:{metric}"}


def test_requests_are_counted_by_adapter_until_it_is_unloaded(http, loaded) -> None:
    before = measured(http, "adapter_requests_total")
    for name in ("fixed", loaded, "octavo/tiny"):
        answer(http, name)
    http.post("/v1/completions", json={"model": "unknown", "prompt": PROMPT})
    more = {name: before.get(name, 0) + 1 for name in ("fixed", loaded, "")}
    assert measured(http, "adapter_requests_total") == {**before, **more}
    http.post("/v1/unload_lora_adapter", json={"lora_name": loaded})
    left = {**before, **more}
    del left[loaded]
    assert measured(http, "adapter_requests_total") == left


def test_how_many_adapters_the_device_has_is_measured(http, folders) -> None:
    write_adapter(folders / "watched" / "counted", 60)
    before = measured(http, "adapter_loads_total")[""]
    answer(http, "counted")
    assert measured(http, "adapter_loads_total")[""] == before + 1
    assert 1 <= measured(http, "num_adapters_on_device")[""] <= before + 1


def test_without_leave_there_are_no_routes_to_load(server: LiveServer) -> None:
    with server.client() as client:
        assert load(client, "a", "b").status_code == 404
        response = client.post("/v1/completions", json={"model": "a", "prompt": PROMPT})
        assert response.status_code == 404
