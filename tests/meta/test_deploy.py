"""What deploy/ holds is well formed, and names what the code has."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from dockerfile import Dockerfile, lets_through
from markdown import ROOT, rows
from octavo.cli.parser import Parser, add_common_options
from octavo.cli.serve import ServeCommand
from octavo.config.server import ServerConfig
from octavo.errors import ConfigError
from octavo.server.apis.health import HealthRoutes
from octavo.server.context import ServerContext
from octavo_kernels.build import ALL_ARCHES, NEWER_ARCHES

DEPLOY = ROOT / "deploy"
FILE = DEPLOY / "Dockerfile"
IMAGES = Dockerfile.read(FILE.read_text())
TARGETS = ("cpu", "cuda")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
MANIFESTS = sorted(p for p in (DEPLOY / "kubernetes").glob("*.yaml") if p.stem != "kustomization")
SECONDS_TO_END = 20
"""After the drain, for processes to go."""


def manifest(name: str) -> Any:
    return yaml.safe_load((DEPLOY / "kubernetes" / f"{name}.yaml").read_text())


DEPLOYMENT = manifest("deployment")
TEMPLATE = DEPLOYMENT["spec"]["template"]
POD = TEMPLATE["spec"]
(CONTAINER,) = POD["containers"]


def served(words: list[str]) -> Any:
    """What ``octavo serve`` makes of these arguments; ConfigError where it does not know one."""
    parser = Parser(prog="octavo serve")
    ServeCommand().configure(parser)
    add_common_options(parser)
    return parser.parse_args(words)


def drain_seconds(words: list[str]) -> float:
    default = ServerConfig().limits.drain_timeout_seconds
    return getattr(served(words), "drain_timeout_seconds", None) or default


def command(target: str, words: list[str]) -> list[str]:
    """The arguments of ``octavo serve`` in an image's container."""
    entrypoint = IMAGES.words(target, "ENTRYPOINT")
    return [*entrypoint[entrypoint.index("serve") + 1 :], *words]


def seconds(text: str) -> float:
    (number, unit) = re.fullmatch(r"(\d+)([smh])", text).groups()
    return float(number) * {"s": 1, "m": 60, "h": 3600}[unit]


def open_paths() -> set[str]:
    """Routes that answer without a key."""
    server = ServerContext(engine=None, host=None, config=ServerConfig(), model_names=("a",))
    routes = HealthRoutes(server)
    return {endpoint.path for endpoint in routes.endpoints() if not endpoint.authenticated}


def test_an_unknown_flag_is_found() -> None:
    with pytest.raises(ConfigError, match="drain-timeout-second"):
        served(["octavo/tiny", "--drain-timeout-second", "5"])


# --- Dockerfile


def test_the_dockerfile_passes_its_linter() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, FILE], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)


def test_what_is_copied_exists_and_is_let_through() -> None:
    paths = IMAGES.context_paths()
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert [path for path in paths if not lets_through(ROOT / ".dockerignore", path)] == []


@pytest.mark.parametrize(
    "path", [".venv", ".git", "tests", "kernels/octavo_kernels/prebuilt", "framework/__pycache__"]
)
def test_what_is_no_source_stays_outside(path: str) -> None:
    assert not lets_through(ROOT / ".dockerignore", path)


def test_the_wheel_gets_all_that_it_is_built_of() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    copied = set(IMAGES.context_paths())
    assert {project["project"]["readme"], *(p.partition("/")[0] for p in packages)} <= copied
    assert ".gitignore" in copied  # without it the wheel takes caches and locks, too


def test_files_are_taken_from_stages_that_come_before() -> None:
    names = list(IMAGES.stages)
    assert {lender for _, lender in IMAGES.lenders()} >= {"toolkit", "kernels", "wheel-cuda"}
    assert all(names.index(lender) < names.index(taker) for taker, lender in IMAGES.lenders())


def test_images_are_pinned() -> None:
    images = [*IMAGES.base_images(), CONTAINER["image"], *(s["image"] for s in SERVICES.values())]
    assert [image for image in images if not re.search(r":\d+\.\d+\.\d+[-\w.]*$", image)] == []


def test_torch_is_the_one_that_is_tested() -> None:
    assert f"torch=={IMAGES.args['TORCH_VERSION']}" in (ROOT / "Makefile").read_text()


def test_kernels_are_built_for_all_architectures_by_as_many_jobs_as_asked() -> None:
    assert IMAGES.args["KERNEL_ARCHES"].split() == [*ALL_ARCHES, *NEWER_ARCHES]
    (build,) = [run for run in IMAGES.stages["kernels"].values("RUN") if "octavo_kernels" in run]
    helped = subprocess.run(
        [sys.executable, "-m", "octavo_kernels", "--help"], capture_output=True, text=True
    ).stdout
    flags = re.findall(r" (--[a-z-]+)", build.replace("--mount", ""))
    assert set(flags) == {"--arch", "--jobs"}
    assert all(flag in helped for flag in flags)
    assert int(IMAGES.args["JOBS"]) >= 1


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_serves_as_nobody_in_particular(target: str) -> None:
    assert IMAGES.last(target, "USER") == "10001:10001"
    assert IMAGES.words(target, "ENTRYPOINT")[-4:-2] == ["octavo", "serve"]
    args = served(command(target, ["octavo/tiny"]))
    assert (args.host, args.model) == ("0.0.0.0", "octavo/tiny")
    assert IMAGES.last(target, "EXPOSE") == str(ServerConfig().listen.port)


@pytest.mark.parametrize("target", TARGETS)
def test_the_health_check_asks_a_route_that_is_open(target: str) -> None:
    program = IMAGES.words(target, "HEALTHCHECK")[2]
    compile(program, "HEALTHCHECK", "exec")
    path = re.search(r"'GET', '([^']+)'", program)[1]
    assert path in open_paths()
    assert f", {ServerConfig().listen.port}," in program


HEARS = """
import torch
from octavo.layers.mel import LogMel
from octavo_plugins.modalities.audio.decoder import AudioDecoder
AudioDecoder()
LogMel(80, torch.device("cpu"))
"""


@pytest.mark.slow
def test_an_image_has_what_numba_compiles_for_models_that_hear(tmp_path: Path) -> None:
    fill = IMAGES.stages["runtime"].values("RUN")[-1]
    program, _, owned = fill.partition(" && ")
    cache = environment("cpu")["NUMBA_CACHE_DIR"]
    assert cache.startswith(environment("cpu")["XDG_CACHE_HOME"] + "/")  # which may be written
    assert shlex.split(owned) == ["chown", "--recursive", "octavo:octavo", cache]
    given = {name: v for name, v in environment("cpu").items() if name.startswith("NUMBA")}
    assert given["NUMBA_CPU_NAME"] == "generic"  # or the machine that builds would be the only one
    paths = {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}

    def kept_by(words: list[str]) -> dict[Path, int]:
        subprocess.run([sys.executable, *words], check=True, env={**os.environ, **given, **paths})
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        return {path: path.stat().st_mtime_ns for path in files}

    filled = kept_by(shlex.split(program)[1:])
    assert filled
    assert kept_by(["-c", HEARS]) == filled


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_installs_the_wheel_of_its_kind(target: str) -> None:
    assert (target, f"wheel-{target}") in IMAGES.lenders()


def test_each_build_argument_is_documented() -> None:
    table = rows(ROOT / "docs" / "deployment.md", "Containers")
    named = {name: default for names, default, _ in table for name in re.findall(r"\w+", names)}
    assert named.keys() == IMAGES.args.keys()
    for name in ("KERNEL_ARCHES", "JOBS", "TORCH_VERSION"):
        assert named[name].strip("`") == IMAGES.args[name]


# --- Compose


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_gives_flags_that_exist_and_time_to_drain(name: str) -> None:
    service = SERVICES[name]
    words = command(service["build"]["target"], service["command"])
    assert seconds(service["stop_grace_period"]) >= drain_seconds(words) + SECONDS_TO_END


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_builds_a_target_with_arguments_that_exist(name: str) -> None:
    build = SERVICES[name]["build"]
    assert build["target"] in TARGETS
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert ROOT / build["dockerfile"] == FILE
    assert build.get("args", {}).keys() <= IMAGES.args.keys()
    assert SERVICES[name]["image"] in FILE.read_text()


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_may_do_no_more_than_it_must(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert [mount.partition(":")[0] for mount in service["volumes"]] == list(COMPOSE["volumes"])
    assert all(
        mount.split(":")[1] == environment(service["build"]["target"])["XDG_CACHE_HOME"]
        for mount in service["volumes"]
    )


def environment(target: str) -> dict[str, str]:
    stages = reversed(IMAGES.lineage(target))
    words = [word for stage in stages for line in stage.values("ENV") for word in shlex.split(line)]
    return dict(word.split("=", 1) for word in words)


def test_the_gpu_service_has_a_gpu_and_shared_memory() -> None:
    (device,) = SERVICES["gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert SERVICES["gpu"]["shm_size"]


# --- Kubernetes


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_is_what_kubernetes_defines(path: Path, version: str) -> None:
    kubernetes_validate.validate(yaml.safe_load(path.read_text()), version, strict=True)


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    wrong = manifest("service")
    wrong["spec"]["port"] = 80
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.30", strict=True)


def test_all_manifests_but_the_example_are_applied() -> None:
    applied = manifest("kustomization")["resources"]
    assert sorted([*applied, "autoscaler.yaml"]) == [path.name for path in MANIFESTS]


def test_objects_choose_the_pods_that_there_are() -> None:
    labels = TEMPLATE["metadata"]["labels"]
    for chosen in (
        DEPLOYMENT["spec"]["selector"]["matchLabels"],
        manifest("service")["spec"]["selector"],
        manifest("disruption")["spec"]["selector"]["matchLabels"],
    ):
        assert chosen.items() <= labels.items()
    target = manifest("autoscaler")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", DEPLOYMENT["metadata"]["name"])
    assert target["apiVersion"] == DEPLOYMENT["apiVersion"]


def test_pods_are_counted_by_a_metric_that_there_is() -> None:
    (metric,) = manifest("autoscaler")["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"].removeprefix("octavo_")
    assert f"`{name}`" in (ROOT / "docs" / "metrics.md").read_text()


def test_a_pod_gets_flags_that_exist_and_time_to_drain() -> None:
    words = command("cuda", CONTAINER["args"])
    (program, pause) = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    needed = float(pause) + drain_seconds(words) + SECONDS_TO_END
    assert POD["terminationGracePeriodSeconds"] >= needed


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_a_probe_asks_a_route_that_is_open_at_the_port_of_the_server(probe: str) -> None:
    asked = CONTAINER[probe]["httpGet"]
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert asked["path"] in open_paths()
    assert ports[asked["port"]] == ServerConfig().listen.port
    assert manifest("service")["spec"]["ports"][0]["targetPort"] in ports
    annotations = TEMPLATE["metadata"]["annotations"]
    assert int(annotations["prometheus.io/port"]) in ports.values()


def test_a_container_may_do_no_more_than_it_must() -> None:
    uid = int(IMAGES.last("cuda", "USER").partition(":")[0])
    pod, own = POD["securityContext"], CONTAINER["securityContext"]
    assert (pod["runAsNonRoot"], pod["runAsUser"], pod["fsGroup"]) == (True, uid, uid)
    assert own["allowPrivilegeEscalation"] is False
    assert own["readOnlyRootFilesystem"] is True
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert POD["automountServiceAccountToken"] is False


def test_a_container_has_a_gpu_shared_memory_and_places_to_write() -> None:
    resources = CONTAINER["resources"]
    assert resources["requests"]["nvidia.com/gpu"] == resources["limits"]["nvidia.com/gpu"]
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in CONTAINER["volumeMounts"]}
    assert set(mounts.values()) == volumes.keys()
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    assert {"/tmp", "/home/octavo", environment("cuda")["XDG_CACHE_HOME"]} <= mounts.keys()
    claim = volumes[mounts["/cache"]]["persistentVolumeClaim"]["claimName"]
    assert claim == manifest("cache")["metadata"]["name"]


def test_keys_lie_where_the_server_looks() -> None:
    args = served(command("cuda", CONTAINER["args"]))
    folder, _, name = args.api_key_file.rpartition("/")
    (mount,) = [m for m in CONTAINER["volumeMounts"] if m["mountPath"] == folder]
    (volume,) = [v for v in POD["volumes"] if v["name"] == mount["name"]]
    made = (DEPLOY / "kubernetes" / "deployment.yaml").read_text().splitlines()[1]
    secret = volume["secret"]["secretName"]
    assert f"kubectl create secret generic {secret} --from-file={name}=" in made
    assert args.open_metrics  # Prometheus has no key
