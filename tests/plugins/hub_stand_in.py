"""A small HTTP server that answers as the Hugging Face Hub and ModelScope do, with faults."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_secret"
CONFIG = b'{"architectures": ["LlamaForCausalLM"]}'
WEIGHTS = bytes(range(256)) * 12_000  # three reads of the client
FILES = {
    "config.json": CONFIG,
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
    "README.md": b"# A model",
    "pytorch_model.bin": b"a pickle",
    "consolidated.safetensors": b"the same again",
    "onnx/model.onnx": b"more of the same",
    "onnx/config.json": b"{}",
    "additional_chat_templates/tool_use.jinja": b"{{ messages }}",
}


@dataclass
class Repository:
    """Files by revision, and what goes wrong with them."""

    revisions: dict[str, dict[str, bytes]]
    private: bool = False
    gated: bool = False
    moved_to: str | None = None
    cuts: dict[str, list[int]] = field(default_factory=dict)
    """By file: after how many bytes the next answers end."""
    corrupt: set[str] = field(default_factory=set)
    too_long: set[str] = field(default_factory=set)
    """Files that go on after their end."""
    no_ranges: bool = False


@dataclass
class Hub:
    """Repositories by name; what was asked, in order."""

    url: str
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    busy: int = 0
    """How many requests are answered 503 first."""
    on_storage: bool = False
    """Whether large files are redirected to another host, as they are at the real one."""

    def asked(self, part: str) -> list[dict[str, str]]:
        """The headers of the requests whose path has that part."""
        return [headers for path, headers in self.requests if part in path]


def commit_of(revision: str) -> str:
    return hashlib.sha1(revision.encode()).hexdigest()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def is_lfs(path: str) -> bool:
    return path.endswith((".safetensors", ".bin", "tokenizer.json"))


@contextmanager
def hub_stand_in() -> Iterator[Hub]:
    hub = Hub("")

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.hub.requests.append((unquote(self.path), dict(self.headers)))
        if self.hub.busy:
            self.hub.busy -= 1
            return self._status(503, retry_after="0")
        parts = urlsplit(self.path)
        path, query = unquote(parts.path), {k: v[0] for k, v in parse_qs(parts.query).items()}
        match [segment for segment in path.split("/") if segment]:
            case ["api", "v1", "models", org, name, "repo", "files"]:
                self._list_modelscope(f"{org}/{name}", query["Revision"])
            case ["api", "v1", "models", org, name, "repo"]:
                self._file(f"{org}/{name}", query["Revision"], query["FilePath"])
            case ["api", "models", org, name, "revision", *_]:
                self._list(f"{org}/{name}", path.partition("/revision/")[2])
            case [org, name, "resolve", commit, *rest]:
                self._file(f"{org}/{name}", commit, "/".join(rest))
            case ["storage", org, name, commit, *rest]:
                self._bytes(self.hub.repositories[f"{org}/{name}"], commit, "/".join(rest))
            case _:
                self._status(404)

    def _repository(self, name: str) -> Repository | None:
        """After the checks that the hubs make."""
        repository = self.hub.repositories.get(name)
        logged_in = self.headers.get("Authorization") == f"Bearer {TOKEN}" or (
            self.headers.get("Cookie") == f"m_session_id={TOKEN}"
        )
        if repository is None or (repository.private and not logged_in):
            self._status(404 if logged_in else 401, code="RepoNotFound")
            return None
        if repository.gated:
            self._status(403 if logged_in else 401, code="GatedRepo")
            return None
        if repository.moved_to is not None:
            self._redirect(self.path.replace(name, repository.moved_to))
            return None
        return repository

    def _list(self, name: str, revision: str) -> None:
        if (repository := self._repository(name)) is None:
            return
        files = _at(repository, revision)
        if files is None:
            return self._status(404, code="RevisionNotFound")
        commit = revision if len(revision) == 40 else commit_of(revision)
        siblings: list[dict[str, Any]] = []
        for path, data in files.items():
            entry = {"rfilename": path, "size": len(data), "blobId": git_blob(data)}
            if is_lfs(path):
                entry["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 130}
            siblings.append(entry)
        self._json({"id": name, "sha": commit, "siblings": siblings})

    def _list_modelscope(self, name: str, revision: str) -> None:
        if (repository := self._repository(name)) is None:
            return
        files = _at(repository, revision)
        if files is None:
            return self._status(404)
        entries = [
            {"Path": path, "Type": "blob", "Size": len(data), "Sha256": sha256(data)}
            for path, data in files.items()
        ]
        folder = {"Path": "assets", "Type": "tree", "Size": 0}
        self._json({"Code": 200, "Data": {"Files": [folder, *entries]}})

    def _file(self, name: str, revision: str, path: str) -> None:
        if (repository := self._repository(name)) is None:
            return
        if self.hub.on_storage and is_lfs(path):
            other = self.hub.url.replace("127.0.0.1", "localhost")
            return self._redirect(f"{other}/storage/{name}/{revision}/{path}")
        self._bytes(repository, revision, path)

    def _bytes(self, repository: Repository, revision: str, path: str) -> None:
        data = (_at(repository, revision) or {})[path]
        if path in repository.corrupt:
            data = bytes(len(data))
        if path in repository.too_long:
            data *= 10
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if repository.no_ranges:
            start = 0
        cuts = repository.cuts.get(path)
        end = start + cuts.pop(0) if cuts else len(data)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        self.wfile.write(data[start:end])

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _redirect(self, url: str) -> None:
        self.send_response(307)
        self.send_header("Location", url)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _status(self, status: int, *, code: str = "", retry_after: str = "") -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _at(repository: Repository, revision: str) -> dict[str, bytes] | None:
    for name, files in repository.revisions.items():
        if revision in (name, commit_of(name)):
            return files
    return None
