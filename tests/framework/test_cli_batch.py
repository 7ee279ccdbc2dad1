from __future__ import annotations

import json
import os
import re
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import main
from octavo.cli.batch.answers import ResultsFile, refusal
from octavo.errors import ConfigError, RequestFailedError
from octavo.server.apis.completions.answer import CompletionAnswer
from octavo.testing.random_model import make_random_model

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_model(tmp_path_factory.mktemp("model"), max_position_embeddings=128)


def completion(custom_id: str, prompt: object = "once", **body: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "temperature": 0, **body}
    return {"custom_id": custom_id, "method": "POST", "url": COMPLETIONS, "body": body}


def chat(custom_id: str, **body: Any) -> dict[str, Any]:
    body = {"model": "tiny", "messages": HELLO, "max_completion_tokens": 4, **body}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def run(folder: Path, model: Path, lines: list[object]) -> tuple[int, dict[Any, dict[str, Any]]]:
    """The exit code, and the results by custom_id."""
    file = folder / "in.jsonl"
    text = [line if isinstance(line, bytes) else _text(line).encode() for line in lines]
    file.write_bytes(b"\n".join(text) + b"\n")
    arguments = ["--model", str(model), "--served-model-name", "tiny", "--num-blocks", "64"]
    code = main(["run-batch", str(file), *arguments])
    results = (folder / "in.results.jsonl").read_bytes().splitlines()
    by_id = {}
    for line in map(json.loads, results):
        assert line["custom_id"] not in by_id
        assert line["error"] is None
        by_id[line["custom_id"]] = line["response"]
    return code, by_id


def _text(line: object) -> str:
    return line if isinstance(line, str) else json.dumps(line)


def error_of(response: dict[str, Any]) -> str:
    return f"{response['status_code']} {response['body']['error']['message']}"


def test_both_kinds_of_request_are_answered_in_openais_form(tmp_path, model) -> None:
    code, results = run(
        tmp_path,
        model,
        [
            completion("text", n=2, user="me", own=1),
            completion("ids", [5, 6, 7]),
            completion("many", ["a", "b"], model=None),
            chat("talk", seed=1, logprobs=True, chat_template="{{ messages[0].content }}"),
        ],
    )
    assert code == 0
    assert {response["status_code"] for response in results.values()} == {200}
    body = results["text"]["body"]
    assert body["warnings"] == [
        "user has no effect", "'own' is no field of this request and has no effect"
    ]  # fmt: skip
    assert (body["object"], body["model"]) == ("text_completion", "tiny")
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert all(choice["text"] and choice["finish_reason"] for choice in body["choices"])
    assert results["ids"]["body"]["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert len(results["many"]["body"]["choices"]) == 2
    body = results["talk"]["body"]
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["role"] == "assistant"
    assert body["choices"][0]["message"]["content"]
    assert body["choices"][0]["logprobs"]["content"]


def test_each_bad_line_gets_its_own_error_and_the_others_are_answered(tmp_path, model) -> None:
    lines = {
        "field": (
            completion("field", temprature=1),
            "400 line 1: 'temprature' is no field .* close: .*tempera",
        ),
        "range": (completion("range", temperature=-1), "400 temperature=-1.0 must be between"),
        "stream": (chat("stream", stream=True), "400 line 3: stream=True is not available"),
        "tools": (chat("tools", tools=[{}]), r"400 tools\[0\]\.function=None must be an object"),
        "model": (completion("model") | {"body": {"model": "big"}}, "404 line 5: model='big'"),
        "url": (completion("url") | {"url": "/v1/embeddings"}, "404 line 6: url='/v1/embeddings'"),
        "method": (completion("method") | {"method": "GET"}, "405 line 7: method='GET'"),
        "long": (completion("long", "word " * 400), "400 .*128"),
        "bias": (completion("bias", logit_bias={"x": 1}), "400 line 9: logit_bias.* expected int"),
        "prompts": (completion("prompts", ["a", 5]), "400 prompt must be .* not a mixture"),
        "role": (chat("role", messages=[{"content": "x"}]), r"400 messages\[0\]\.role=None"),
    }
    requests = [line for line, _ in lines.values()]
    code, results = run(tmp_path, model, [*requests, completion("good"), "{broken"])
    assert code == 1
    assert results.pop("good")["status_code"] == 200
    assert error_of(results.pop(None)).startswith("400 line 13: the line is no JSON")
    assert results.keys() == lines.keys()
    for custom_id, (_, pattern) in lines.items():
        assert re.match(pattern, error_of(results[custom_id])), error_of(results[custom_id])
    details = {name: results[name]["body"]["error"] for name in lines}
    named = {name: each["param"] for name, each in details.items() if each["param"]}
    assert named == {
        "field": "temprature",
        "range": "temperature",
        "stream": "stream",
        "tools": "tools",
        "model": "model",
        "long": "prompt",
        "bias": "logit_bias",
        "prompts": "prompt",
        "role": "messages",
    }
    assert details["long"]["code"] == "context_length_exceeded"
    assert details["range"]["type"] == "invalid_request_error"


DOUBTFUL = {
    "bytes that are no text": b'{"custom_id": "a", "body": "\xff"}',
    "no object": b"[1]",
    "half a line": b'{"custom_id": "a", "body": {',
    "deep": b'{"custom_id": "a", "body": ' + b"[" * 100_000,
    "digits": b'{"custom_id": "a", "body": {"seed": ' + b"9" * 10_000 + b"}}",
    "a zero byte": b"\0",
}


@pytest.mark.parametrize("kind", DOUBTFUL)
def test_a_line_that_cannot_be_read_hurts_itself_alone(tmp_path, model, kind) -> None:
    good = [json.dumps(completion(name)).encode() for name in ("one", "two")]
    lines = (good[0], DOUBTFUL[kind], good[1])
    code, results = run(tmp_path, model, list(lines))
    assert code == 1
    assert error_of(results.pop(None)).startswith("400 line 2: ")
    assert {name: each["status_code"] for name, each in results.items()} == {"one": 200, "two": 200}


ODD = {
    "no number": {"temperature": float("nan")},
    "no bias": {"logit_bias": {"5": float("inf")}},
    "half a character": {"prompt": "\ud800"},
    "half a character of a stop": {"stop": ["\ud800"]},
    "a key of another kind": {"model": ["tiny"]},
    "an object as text": {"prompt": {"a": 1}},
    "an integer without end": {"seed": 10**400},
}


@pytest.mark.parametrize("kind", ODD)
def test_what_json_can_say_and_a_server_would_not_take_hurts_its_line_alone(
    tmp_path, model, kind
) -> None:
    odd = {**completion("odd"), "body": {**completion("odd")["body"], **ODD[kind]}}
    code, results = run(tmp_path, model, [completion("one"), odd, completion("two")])
    assert code == 1
    assert results["odd"]["status_code"] in (400, 404)
    assert results["one"]["status_code"] == results["two"]["status_code"] == 200


@pytest.mark.parametrize("error", [KeyError("logprobs"), RecursionError(), OSError(5, "gone")])
def test_a_line_whose_answer_fails_hurts_itself_alone_and_is_tried_again(
    tmp_path, model, monkeypatch, error
) -> None:
    def fail(answer: Any, output: Any) -> Any:
        if answer._request.seed == 7:
            raise error
        return whole(answer, output)

    lines = [completion("one"), completion("bad", seed=7), completion("two")]
    answer_type = CompletionAnswer
    whole = answer_type.whole
    for num_before in (0, 2):  # and again when it goes on
        with monkeypatch.context() as patch:
            patch.setattr(answer_type, "whole", fail)
            code, results = run(tmp_path, model, lines)
        assert code == 1
        assert results.keys() == {"one", "bad", "two"}, num_before
        assert error_of(results["bad"]).startswith(f"500 {type(error).__name__}")
    code, results = run(tmp_path, model, lines)
    assert code == 0
    assert results["bad"]["status_code"] == 200


def test_a_failure_of_ours_says_its_cause_to_whom_the_machine_belongs() -> None:
    line = refusal("a", RequestFailedError("/root/weights are gone"), CHAT)
    assert error_of(line["response"]) == "500 /root/weights are gone"
    assert line["response"]["body"]["error"]["type"] == "server_error"


def test_a_line_without_an_id_or_with_anothers_is_told_by_number(tmp_path, model) -> None:
    code, results = run(tmp_path, model, [completion("a"), completion("a", n=2)])
    assert code == 1
    assert error_of(results[None]) == "400 line 2: custom_id='a' is that of an earlier line"
    assert len(results["a"]["body"]["choices"]) == 1


def test_a_run_goes_on_where_the_last_one_ended(tmp_path, model) -> None:
    lines = [completion("one"), completion("bad", temperature=-1), completion("two")]
    _, first = run(tmp_path, model, lines)
    output = tmp_path / "in.results.jsonl"
    kept = [line for line in output.read_text().splitlines() if '"two"' not in line]
    failed = {"custom_id": "two", "response": {"status_code": 500, "body": {}}}
    output.write_text("\n".join([*kept, json.dumps(failed), '{"custom_id": "cut']))
    code, second = run(tmp_path, model, lines)
    assert code == 0  # "bad" was told already
    assert second["one"] == first["one"]
    assert second["bad"] == first["bad"]
    assert second["two"]["status_code"] == 200
    assert second["two"]["request_id"] != first["two"]["request_id"]
    before = output.read_text()
    assert run(tmp_path, Path("no model is loaded when nothing is left"), lines) == (0, second)
    assert output.read_text() == before


def test_what_was_done_is_told_at_the_end(tmp_path, model, capsys) -> None:
    output = tmp_path / "in.results.jsonl"
    lines = [completion("one"), completion("bad", temperature=-1)]
    run(tmp_path, model, lines)
    told = f"2 lines: 1 answered, 1 refused or failed; results are in {output}\n"
    assert capsys.readouterr().out == told
    run(tmp_path, model, [*lines, completion("two")])
    told = f"3 lines: 2 done before, 1 answered; results are in {output}\n"
    assert capsys.readouterr().out == told
    run(tmp_path, model, lines)
    assert capsys.readouterr().out == f"2 lines, all done before; results are in {output}\n"


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_file_without_requests_is_refused(tmp_path, capsys, text) -> None:
    (tmp_path / "in.jsonl").write_text(text)
    assert main(["run-batch", str(tmp_path / "in.jsonl"), "--model", "tiny"]) == 2
    assert "in.jsonl has no requests" in capsys.readouterr().err


def test_a_file_of_windows_is_read_as_any_other(tmp_path, model) -> None:
    text = "\r\n".join(json.dumps(completion(name, model=str(model))) for name in "ab")
    (tmp_path / "in.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n")
    assert main(["run-batch", str(tmp_path / "in.jsonl"), "--num-blocks", "64"]) == 0
    results = (tmp_path / "in.results.jsonl").read_text().splitlines()
    assert {json.loads(line)["custom_id"] for line in results} == {"a", "b"}


def test_a_file_of_something_else_says_why_no_model_is_found(tmp_path, capsys) -> None:
    (tmp_path / "in.jsonl").write_text("no JSON\n{}\n")
    assert main(["run-batch", str(tmp_path / "in.jsonl")]) == 2
    told = capsys.readouterr().err
    assert "in.jsonl names a model (line 1: the line is no JSON" in told
    assert told.endswith("; give one with --model\n")


def test_any_text_is_an_id_and_no_character_splits_or_spoils_a_result(tmp_path, model) -> None:
    half, separator = "half a pair \ud800", "a line\u2028separator"
    lines = [completion(half), completion(separator)]
    code, first = run(tmp_path, model, lines)
    assert (code, first.keys()) == (0, {half, separator})
    kept = {"custom_id": separator, "response": first[separator], "error": None}
    text = json.dumps(kept, ensure_ascii=False) + '\n{"custom_id": "cut in a character: é'
    (tmp_path / "in.results.jsonl").write_bytes(text.encode()[:-1])
    code, second = run(tmp_path, model, lines)
    assert (code, second.keys()) == (0, {half, separator})
    assert second[separator] == first[separator]


@pytest.mark.parametrize(
    "text",
    ["my thesis", "my thesis\n", json.dumps(completion("a")), '{"cut\n', "5", '{"custom_id": "a"}',
     '{"custom_id": "a", "response": {"status_code": "good"}}'],
)  # fmt: skip
def test_a_file_of_something_else_is_never_written_over(tmp_path, capsys, text) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(completion("a")))
    (tmp_path / "mine").write_text(text)
    output = ["--output", str(tmp_path / "mine")]
    assert main(["run-batch", str(tmp_path / "in.jsonl"), *output]) == 2
    assert "line 1 of" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == text
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "mine"}


def test_results_go_into_a_file_that_can_be_kept_or_nowhere(tmp_path, capsys) -> None:
    file = tmp_path / "in.jsonl"
    assert main(["run-batch", str(file), "--model", "tiny"]) == 2
    assert "in.jsonl cannot be read" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    file.write_text(json.dumps(completion("a")))
    os.mkfifo(tmp_path / "pipe")
    for output, said in (
        (tmp_path, "is no file"),
        (tmp_path / "pipe", "is no file"),
        (tmp_path / "none" / "out", "cannot be written: No such file"),
    ):
        assert main(["run-batch", str(file), "--output", str(output)]) == 2
        assert said in capsys.readouterr().err
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_of_two_runs_into_one_file_the_second_is_refused(tmp_path) -> None:
    path = tmp_path / "out"
    for _ in range(2):  # into a new file, and into one of an earlier run
        with ResultsFile(path) as results:
            results.append({"custom_id": "a", "response": {"status_code": 200}})
            with pytest.raises(ConfigError, match="another run writes"):
                ResultsFile(path)
    with ResultsFile(path) as results:
        assert results.done == {"a"}


def test_lines_may_name_adapters(tmp_path, capsys) -> None:
    file = tmp_path / "in.jsonl"
    asks = [{"role": "user", "content": "What is the capital of Italy?"}]
    told = {
        name: chat(name, model=name, messages=asks, max_completion_tokens=16, temperature=0)
        for name in ("pirate", "octavo/tiny", "sailor")
    }
    file.write_text("\n".join(map(json.dumps, told.values())))
    flags = ("--enable-lora", "--lora-modules", "pirate=octavo/tiny-pirate")
    assert main(["run-batch", str(file), *flags]) == 1  # the model is the first that is no adapter
    lines = map(json.loads, (tmp_path / "in.results.jsonl").read_text().splitlines())
    found = {line["custom_id"]: line["response"] for line in lines}
    texts = {
        name: response["body"]["choices"][0]["message"]["content"]
        for name, response in found.items()
        if response["status_code"] == 200
    }
    assert texts.keys() == {"pirate", "octavo/tiny"}
    assert texts["pirate"] != texts["octavo/tiny"]
    assert "this run has 'octavo/tiny' and 'pirate'" in error_of(found["sailor"])
    assert main(["run-batch", str(file), "-o", str(tmp_path / "out"), *flags[1:]]) == 2
    assert "adapters need enable_lora" in capsys.readouterr().err


def test_the_requests_may_come_from_a_pipe(tmp_path, model) -> None:
    os.mkfifo(tmp_path / "pipe")
    text = json.dumps(completion("a", model=str(model)))
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(text,))
    writer.start()
    output = tmp_path / "out"
    flags = ["--num-blocks", "64", "--output", str(output)]
    assert main(["run-batch", str(tmp_path / "pipe"), *flags]) == 0
    writer.join()
    assert json.loads(output.read_text())["custom_id"] == "a"


def test_the_model_is_what_the_first_line_names(tmp_path, model, capsys) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps(completion("a", model=str(model))))
    assert main(["run-batch", str(file), "-o", str(tmp_path / "out"), "--num-blocks", "64"]) == 0
    assert json.loads((tmp_path / "out").read_text())["response"]["status_code"] == 200
    file.write_text("{}\n")
    assert main(["run-batch", str(file)]) == 2
    assert "names a model (line 1: custom_id=None must be text" in capsys.readouterr().err
    assert main(["run-batch", str(tmp_path / "none")]) == 2
