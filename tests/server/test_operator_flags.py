"""What an operator sets for all requests, on an engine of this process."""

from __future__ import annotations

import json
import logging
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo import AsyncLLM
from octavo.config.server import ListenConfig, ServeConfig, ServerConfig
from octavo.errors import ConfigError
from octavo.inputs.chat import ChatRenderer
from octavo.inputs.defaults import default_sampling_params
from octavo.observability.logs import HTTP_LOGGERS, set_http_level
from octavo.server.app import add_built_in_routes, make_app
from octavo.server.context import ServerContext
from octavo.server.http.certificates import CertificateWatch, check_certificates, load_certificates

TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if tone %} {{ tone }}{% endif %}"
    "{% if add_generation_prompt %} is{% endif %}"
)
FLAGS = ServeConfig(
    response_role="narrator",
    return_tokens_as_token_ids=True,
    enable_force_include_usage=True,
    disable_fastapi_docs=True,
)
CHAT = {"messages": [{"role": "user", "content": "The capital of France"}]}

LONG = {**CHAT, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncLLM]:
    llm = AsyncLLM(
        "octavo/tiny",
        max_model_len=256,
        chat_template=TEMPLATE,
        default_chat_template_kwargs={"tone": "calmly"},
        override_generation_config={"temperature": 0.0, "max_new_tokens": 9},
        max_logprobs=30,
        stream_interval=4,
        long_prefill_token_threshold=8,
    )
    add_built_in_routes(llm.host.routes)
    yield llm
    llm.close()


@pytest.fixture
async def http(engine: AsyncLLM, request: Any) -> AsyncIterator[httpx.AsyncClient]:
    config = ServerConfig(serve=getattr(request, "param", FLAGS))
    context = ServerContext(engine=engine, host=engine.host, config=config, model_names=("m",))
    transport = httpx.ASGITransport(make_app(context))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def events(reply: httpx.Response) -> list[dict[str, Any]]:
    lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


async def test_a_chat_has_the_operators_role_tokens_and_length(http) -> None:
    reply = await http.post("/v1/chat/completions", json={**LONG, "logprobs": True})
    (choice,) = reply.json()["choices"]
    assert choice["message"]["role"] == "narrator"
    assert choice["finish_reason"] == "length"
    tokens = choice["logprobs"]["content"]
    assert len(tokens) == 9
    assert all(each["token"].startswith("token_id:") for each in tokens)
    named = {**CHAT, "logprobs": True, "return_tokens_as_token_ids": False}
    reply = await http.post("/v1/chat/completions", json=named)
    tokens = reply.json()["choices"][0]["logprobs"]["content"]
    assert not any(each["token"].startswith("token_id:") for each in tokens)


async def test_all_events_of_a_stream_tell_the_usage_and_have_some_tokens(http) -> None:
    wish = {**LONG, "stream": True, "return_token_ids": True}
    *told, last = events(await http.post("/v1/chat/completions", json=wish))
    first, *rest = told
    assert first["choices"][0]["delta"]["role"] == "narrator"
    assert first["usage"]["completion_tokens"] == 0
    assert first["usage"]["prompt_tokens"] > 0
    counts = [len(each["choices"][0]["token_ids"]) for each in rest]
    assert sum(counts) == 9
    assert all(count >= 4 for count in counts[1:-1])
    assert len(counts) <= 4
    assert [each["usage"]["completion_tokens"] for each in rest] == [
        sum(counts[: index + 1]) for index in range(len(counts))
    ]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 9


@pytest.mark.parametrize("http", [ServeConfig()], indirect=True)
@pytest.mark.parametrize(
    ("options", "in_events", "at_end"),
    [
        ({"include_usage": False, "continuous_usage_stats": True}, False, False),
        ({"include_usage": False}, False, False),
        ({"include_usage": True, "continuous_usage_stats": True}, True, True),
        ({"include_usage": True}, False, True),
        (None, False, False),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_usage_is_told_if_it_is_asked_for(http, path, options, in_events, at_end) -> None:
    asked = CHAT if "chat" in path else {"prompt": "The capital"}
    reply = await http.post(path, json={**asked, "stream": True, "stream_options": options})
    told = events(reply)
    assert (told[-1]["choices"] == []) == at_end
    assert all(bool(each.get("usage")) == in_events for each in told if each["choices"])


async def test_variables_of_the_template_are_the_operators_unless_given(http, engine) -> None:
    async def tokens(**more: Any) -> list[int]:
        reply = await http.post("/tokenize", json={**CHAT, **more})
        ids: list[int] = reply.json()["tokens"]
        return ids

    encode = engine.get_tokenizer().encode
    assert await tokens() == encode("The capital of France calmly is", add_special_tokens=False)
    loud = await tokens(chat_template_kwargs={"tone": "loudly"})
    assert loud == encode("The capital of France loudly is", add_special_tokens=False)


async def test_as_many_logprobs_as_the_operator_allows(http) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "The", "logprobs": 30, "max_tokens": 1}),
        ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 30}),
        ("/v1/completions", {"prompt": "The", "prompt_logprobs": 30, "max_tokens": 1}),
    ):
        assert (await http.post(path, json=body)).status_code == 200
        more = {key: 31 if value == 30 else value for key, value in body.items()}
        reply = await http.post(path, json=more)
        assert reply.status_code == 400
        assert "30" in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
async def test_the_documentation_may_be_off(http, path: str) -> None:
    assert (await http.get(path)).status_code == 404


async def test_a_long_prompt_comes_in_pieces_and_gives_the_same(engine) -> None:
    """Its tokens are those of an engine that reads it at once."""
    ids = engine.get_tokenizer().encode("Once upon a time there was a city by the sea. " * 4)
    async for output in engine.generate({"prompt_token_ids": ids}):
        last = output
    async with AsyncLLM("octavo/tiny", max_model_len=256) as whole:
        params = engine.get_default_sampling_params()
        async for output in whole.generate({"prompt_token_ids": ids}, params):
            other = output
    assert last.outputs[0].token_ids == other.outputs[0].token_ids
    assert len(ids) > 3 * 8


def test_overrides_of_sampling_parameters_are_checked() -> None:
    params = default_sampling_params({"temperature": 0.3, "top_k": 5}, {"temperature": 0.7})
    assert (params.temperature, params.top_k) == (0.7, 5)
    with pytest.raises(ConfigError, match=r"override_generation_config\.temprature: close: "):
        default_sampling_params({}, {"temprature": 1})
    with pytest.raises(ConfigError, match="override_generation_config: top_p=3"):
        default_sampling_params({}, {"top_p": 3})


def test_variables_that_no_template_reads_are_told(caplog: pytest.LogCaptureFixture) -> None:
    given = {"enable_thinking": False, "tone": 1}
    ChatRenderer(None, chat_template=TEMPLATE, default_kwargs=given)
    (line,) = caplog.messages
    assert "does not read 'enable_thinking'" in line
    with pytest.raises(ConfigError, match="default_chat_template_kwargs may not set 'messages'"):
        ChatRenderer(None, chat_template=TEMPLATE, default_kwargs={"messages": []})


def test_http_has_a_level_of_its_own() -> None:
    before = {name: logging.getLogger(name).level for name in HTTP_LOGGERS}
    try:
        set_http_level("warning")
        assert not logging.getLogger("octavo.access").isEnabledFor(logging.INFO)
        set_http_level("trace")
        assert logging.getLogger("octavo.access").isEnabledFor(logging.DEBUG)
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def new_certificate(folder: Path, name: str) -> None:
    made = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    files = ["-subj", f"/CN={name}", "-keyout", folder / "key", "-out", folder / "cert"]
    subprocess.run(["openssl", *made, *files], check=True, capture_output=True)


def shown_by(server: ssl.SSLContext) -> bytes:
    """The certificate that a client of such a server gets."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate = ends[0].getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


def test_certificates_that_change_are_read_again(tmp_path: Path, caplog) -> None:
    new_certificate(tmp_path, "one")
    listen = ListenConfig(ssl_certfile=f"{tmp_path}/cert", ssl_keyfile=f"{tmp_path}/key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificates(context, listen)
    watch = CertificateWatch(context, listen)
    first = shown_by(context)
    watch.look()
    assert shown_by(context) == first
    key = (tmp_path / "key").read_bytes()
    new_certificate(tmp_path, "two")
    theirs = (tmp_path / "key").read_bytes()
    (tmp_path / "key").write_bytes(key)  # the new certificate came, and its key not yet
    watch.look()
    assert shown_by(context) == first
    assert "cannot be used yet" in caplog.text
    (tmp_path / "key").unlink()
    (tmp_path / "key").write_bytes(theirs)
    watch.look()
    assert shown_by(context) != first


def test_what_tls_cannot_be_is_refused_at_the_start(tmp_path: Path) -> None:
    new_certificate(tmp_path, "one")
    files = {"ssl_certfile": f"{tmp_path}/cert", "ssl_keyfile": f"{tmp_path}/key"}
    check_certificates(ListenConfig(**files, ssl_ciphers="ECDHE+AESGCM"))
    with pytest.raises(ConfigError, match="ssl_ciphers='nonsense'"):
        check_certificates(ListenConfig(**files, ssl_ciphers="nonsense"))
    with pytest.raises(ConfigError, match="ssl_cert_reqs needs ssl_ca_certs"):
        ListenConfig(**files, ssl_cert_reqs=2)
    with pytest.raises(ConfigError, match="enable_ssl_refresh needs ssl_certfile"):
        ListenConfig(enable_ssl_refresh=True)
    ca = {**files, "ssl_ca_certs": f"{tmp_path}/cert"}
    asked = [ListenConfig(**ca, ssl_cert_reqs=n).client_certificates for n in (None, 0, 1)]
    assert asked == [ssl.CERT_REQUIRED, ssl.CERT_NONE, ssl.CERT_OPTIONAL]
