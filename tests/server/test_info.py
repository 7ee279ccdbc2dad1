"""/capabilities and /plugins."""

from __future__ import annotations

from octavo_registry import PluginHost


def test_capabilities_say_why_something_is_off(http) -> None:
    told = http.get("/capabilities").json()
    assert told["models"] == ["octavo/tiny"]
    assert told["architecture"] == "LlamaForCausalLM"
    assert told["limits"]["max_model_len"] == 1024
    features = told["features"]
    assert features["chat"]["on"]
    assert features["prefix_caching"]["on"]
    assert features["unknown_fields"]["on"]
    assert "--scheduling-policy" in features["priority"]["why"]
    assert all(feature["on"] or feature["why"] for feature in features.values())


def test_what_is_said_to_be_off_is_refused(http) -> None:
    features = http.get("/capabilities").json()["features"]
    asked = {
        "priority": {"priority": 1},
        "request_chat_template": {"chat_template": "{{ messages }}"},
    }
    hello = {"messages": [{"role": "user", "content": "Hello"}]}
    for name, body in asked.items():
        assert not features[name]["on"]
        assert http.post("/v1/chat/completions", json=hello | body).status_code == 400


def test_plugins_are_those_of_the_command_line(http) -> None:
    told = http.get("/plugins").json()["plugins"]
    host = PluginHost.discover()
    assert {plugin["name"] for plugin in told} == {record.name for record in host.plugins}
    by_name = {plugin["name"]: plugin for plugin in told}
    llama = by_name["models_llama"]
    assert "LlamaForCausalLM" in llama["registers"]["model"]
    assert (llama["failures"], llama["quarantined_seconds"]) == ({}, None)
    assert llama["distribution"] == "octavo"
