"""What is under ops/ agrees with Kubernetes' schemas and with the server it runs (SPEC O7)."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

import nexo
from nexo.admin import named_metrics
from nexo.admin import prometheus as metrics
from nexo.config import SETTINGS, Settings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "ops" / "kubernetes"
KUBERNETES = "1.32"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def containers() -> Iterator[dict[str, Any]]:
    for name in ("nexo.yaml", "worker.yaml"):
        for document in documents(name):
            if "template" in document.get("spec", {}):
                yield from document["spec"]["template"]["spec"]["containers"]


@pytest.mark.skipif(find_spec("kubernetes_validate") is None, reason="needs kubernetes-validate")
@pytest.mark.parametrize("name", ["nexo.yaml", "two-servers.yaml", "worker.yaml"])
def test_kubernetes_accepts_the_manifests(name: str) -> None:
    import kubernetes_validate  # noqa: PLC0415 - optional on a laptop

    for document in documents(name):
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (ROOT / "ops" / "nexo.service").read_text(encoding="utf-8")
    unit = tmp_path / "nexo.service"
    unit.write_text(text.replace("/opt/nexo/bin/nexo serve", shutil.which("true") or ""))
    command = ["systemd-analyze", "verify", str(unit)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_ports_probes_and_variables_are_the_server_s() -> None:
    (server,) = [one for one in containers() if one["name"] == "nexo"]
    settings = Settings()
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert ports == {
        "nexo": settings.port, "http": settings.http_port, "health": settings.health_port,
    }  # fmt: skip
    for probe, path in (("startup", "/ready"), ("readiness", "/ready"), ("liveness", "/health")):
        asked = server[f"{probe}Probe"]["httpGet"]
        assert (asked["path"], asked["port"]) == (path, "health")
    known = {each.variable for each in SETTINGS.values()}
    (config,) = [one for one in documents("nexo.yaml") if one["kind"] == "ConfigMap"]
    assert set(config["data"]) <= known
    assert server["image"] == f"nexo:{nexo.__version__}"


def test_two_servers_differ_from_one_in_replication_only() -> None:
    (one,) = [each for each in documents("nexo.yaml") if each["kind"] == "StatefulSet"]
    (two,) = [each for each in documents("two-servers.yaml") if each["kind"] == "StatefulSet"]
    (alone,), (server,) = (each["spec"]["template"]["spec"]["containers"] for each in (one, two))
    differing = {"env", "envFrom", "startupProbe", "readinessProbe"}
    assert {key for key in server if server[key] != alone.get(key)} == differing
    assert server["startupProbe"]["httpGet"]["path"] == "/health"  # a standby is never ready
    known = {each.variable for each in SETTINGS.values()}
    (config,) = [each for each in documents("two-servers.yaml") if each["kind"] == "ConfigMap"]
    assert {*config["data"], "NEXO_REPLICATE_ADDRESS"} <= known
    assert SETTINGS["replicate"].variable in config["data"]


def test_the_servers_of_the_compose_file_share_a_store() -> None:
    text = (ROOT / "ops" / "compose-two.yaml").read_text(encoding="utf-8")
    services = yaml.safe_load(text)["services"]
    assert len({each["environment"]["NEXO_REPLICATE"] for each in services.values()}) == 1
    known = {each.variable for each in SETTINGS.values()}
    for name, service in services.items():
        assert set(service["environment"]) <= known
        assert service["environment"]["NEXO_REPLICATE_ADDRESS"].startswith(f"{name}:")
        assert service["read_only"]


def test_every_container_is_kept_from_what_it_does_not_need() -> None:
    found = list(containers())
    assert len(found) == 2
    for container in found:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in container["resources"]["limits"]


def test_the_keda_recipe_asks_for_metrics_that_exist() -> None:
    (recipe,) = documents("keda.yaml")
    (worker,) = documents("worker.yaml")
    assert recipe["spec"]["scaleTargetRef"]["name"] == worker["metadata"]["name"]
    query = recipe["spec"]["triggers"][0]["metadata"]["query"]
    sources = [metrics.__file__, named_metrics.__file__]
    known = "".join(Path(source).read_text(encoding="utf-8") for source in sources)
    asked = re.findall(r"nexo_\w+", query)
    assert asked
    assert [name for name in asked if f'"{name}"' not in known] == []


def test_compose_is_as_strict_and_sets_only_what_the_server_knows() -> None:
    text = (ROOT / "ops" / "compose.yaml").read_text(encoding="utf-8")
    service = yaml.safe_load(text)["services"]["nexo"]
    settings = Settings()
    assert service["ports"] == [
        f"127.0.0.1:{port}:{port}" for port in (settings.port, settings.http_port)
    ]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    known = {each.variable for each in SETTINGS.values()}
    assert set(service["environment"]) <= known


def test_systemd_waits_until_the_server_is_ready() -> None:
    unit = (ROOT / "ops" / "nexo.service").read_text(encoding="utf-8")
    known = {each.variable for each in SETTINGS.values()}
    assert "Type=notify\n" in unit
    assert set(re.findall(r"^Environment=(\w+)=", unit, re.MULTILINE)) <= known


def test_the_image_has_the_ports_and_the_health_check_of_the_server() -> None:
    text = (ROOT / "ops" / "Dockerfile").read_text(encoding="utf-8")
    settings = Settings()
    assert f"EXPOSE {settings.port} {settings.http_port} {settings.health_port}" in text
    assert f"http://127.0.0.1:{settings.health_port}/health" in text
    assert re.search(r"^USER 10001$", text, re.MULTILINE)
