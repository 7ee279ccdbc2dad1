"""A line whose request fails inside the engine hurts no other, however often the file is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import main

PLUGIN = """
from pathlib import Path

import torch
from octavo.errors import EngineDeadError
from octavo_registry import hookimpl

OCTAVO_API = "1"
DIED = Path(__file__).with_name("died")


@hookimpl
def register_logits_processors(processors):
    processors.add("failing", "failing_plugin:Failing")


class Failing:
    def __init__(self, vocab_size, device):
        self.how = {}

    def attach(self, slot, extra_args, prompt_token_ids, output_token_ids):
        self.how[slot] = extra_args.get("how")
        if self.how[slot] == "attach":
            raise KeyError("attach")

    def detach(self, slot):
        self.how.pop(slot, None)

    def apply(self, logits_RV, slots_R):
        for row, slot in enumerate(slots_R.tolist()):
            if self.how.get(slot) == "apply":
                raise IndexError("apply")
            if self.how.get(slot) == "die" and not DIED.exists():
                DIED.touch()
                raise EngineDeadError("the device is gone")
            if self.how.get(slot) == "nan":
                logits_RV[row] = torch.nan
            if self.how.get(slot) == "shape":
                return logits_RV[:, :3]
        return logits_RV
"""


def line(custom_id: str, **body: Any) -> str:
    body = {"model": "octavo/tiny", "prompt": "Hello", "max_tokens": 4, **body}
    url = "/v1/completions"
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def statuses(file: Path) -> dict[str, int]:
    results = map(json.loads, file.with_name("in.results.jsonl").read_text().splitlines())
    return {each["custom_id"]: each["response"]["status_code"] for each in results}


@pytest.mark.parametrize("how", ["attach", "apply", "nan", "shape"])
def test_a_line_that_fails_in_a_step_hurts_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    (tmp_path / "failing_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "in.jsonl"
    bad = line("bad", vllm_xargs={"how": how})
    file.write_text("\n".join([line("one"), bad, line("two", n=2), line("three")]))
    flags = ["--plugin", "failing_plugin", "--logits-processors", "failing", "--dtype", "float32"]
    for _ in range(2):  # the second goes on where the first ended
        assert main(["run-batch", str(file), *flags]) == 1
        found = statuses(file)
        assert found.pop("bad") >= 400
        assert found == {"one": 200, "two": 200, "three": 200}


def test_an_engine_that_ends_leaves_what_is_done_and_the_next_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "failing_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "in.jsonl"
    wrong = line("wrong", max_tokens=-1)
    last = [line(name, vllm_xargs={"how": "die"}, max_tokens=8) for name in ("three", "four")]
    file.write_text("\n".join([line("one"), wrong, line("two"), *last]))
    flags = ["--plugin", "failing_plugin", "--logits-processors", "failing", "--dtype", "float32"]
    assert main(["run-batch", str(file), *flags, "--max-num-seqs", "1"]) == 1
    told = capsys.readouterr().out
    assert "5 lines: 2 answered, 1 refused or failed, 2 without an answer" in told
    assert "The engine has ended: the engine failed: the device is gone" in told
    assert "Run the command again to go on." in told
    assert statuses(file) == {"one": 200, "wrong": 400, "two": 200}
    assert main(["run-batch", str(file), *flags]) == 0
    assert "5 lines: 3 done before, 2 answered" in capsys.readouterr().out
    assert statuses(file) == {"one": 200, "wrong": 400, "two": 200, "three": 200, "four": 200}
