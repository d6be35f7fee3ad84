"""Test what `docker-compose.yml` and `infra/Dockerfile` contain. No Docker is needed."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.compose_file import container_environment, load

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = load()
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OWN = {name: service for name, service in SERVICES.items() if "build" in service}
DOCKERFILE = (ROOT / "infra" / "Dockerfile").read_text(encoding="utf-8")

# For development only: Apache Kafka has the broker's place here, compose is the supervisor. Planner and tuner are
# commands.
NOT_DEPLOYED = {"broker", "cli", "planner", "simulator", "tuner"}
# The same module from another image.
VARIANTS = {"generator-gpu": "generator"}
EXACT_TAG = re.compile(r"[a-z0-9./-]+:v?\d+\.\d+\.\d+(-[a-z0-9.-]+)?")

each_service = pytest.mark.parametrize("name", SERVICES)
each_own = pytest.mark.parametrize("name", OWN)


def _published(service: dict[str, Any]) -> list[str]:
    return [re.sub(r"\$\{\w+:-(\d+)\}", r"\1", port) for port in service.get("ports", [])]


def test_every_service_that_can_be_started_is_there_under_its_own_name() -> None:
    startable = {path.parent.name for path in (ROOT / "services").glob("*/__main__.py")}

    assert set(OWN) - VARIANTS.keys() == startable - NOT_DEPLOYED


@each_own
def test_prometheus_reaches_the_metrics_from_its_own_container(name: str) -> None:
    environment = container_environment(OWN[name], {})
    prefix = "RAILBUS_EDGE" if name == "edge" else "RAILBUS_HEALTH"
    port = {"RAILBUS_EDGE": "8080", "RAILBUS_HEALTH": "9100"}[prefix]

    assert (environment.get(f"{prefix}_HOST"), environment.get(f"{prefix}_PORT")) == ("0.0.0.0", port)


@each_own
def test_the_command_is_the_module(name: str) -> None:
    assert OWN[name]["command"] == ["python", "-m", f"services.{VARIANTS.get(name, name)}"]


@each_service
def test_only_the_edge_is_reachable_from_other_machines(name: str) -> None:
    ports = _published(SERVICES[name])

    if name == "edge":
        assert ports == ["8080:8080"]
    else:
        assert all(port.startswith("127.0.0.1:") for port in ports)
    assert SERVICES[name].get("network_mode") is None


def test_the_edge_asks_for_keys() -> None:
    edge = SERVICES["edge"]
    (secret,) = edge["secrets"]

    assert edge["environment"]["RAILBUS_API_KEYS_FILE"] == f"/run/secrets/{secret}"
    assert secret in COMPOSE["secrets"]


def test_keys_of_the_edges_are_not_evicted_by_the_cache_of_the_rails() -> None:
    def policy(service: str) -> str:
        host = re.fullmatch(r"redis://(\w+):6379/0", SERVICES[service]["environment"]["RAILBUS_REDIS_URL"])
        assert host is not None
        command: list[str] = SERVICES[host[1]]["command"]
        return command[command.index("--maxmemory-policy") + 1]

    assert (policy("edge"), policy("rails")) == ("noeviction", "allkeys-lru")


@each_service
def test_health_restart_and_limits(name: str) -> None:
    service = SERVICES[name]

    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["restart"] == "unless-stopped"
    assert service["mem_limit"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


@each_service
def test_nothing_runs_as_root(name: str) -> None:
    if name == "kafka":  # its image names a user itself
        return
    assert int(SERVICES[name]["user"].split(":")[0]) > 0
    assert SERVICES[name]["read_only"] is True


@each_service
def test_images_are_pinned(name: str) -> None:
    assert EXACT_TAG.fullmatch(SERVICES[name]["image"])


def test_services_that_share_an_image_are_built_alike() -> None:
    builds: dict[str, Any] = {}
    for service in OWN.values():
        assert builds.setdefault(service["image"], service["build"]) == service["build"]


@each_own
def test_what_an_image_is_built_from_exists(name: str) -> None:
    build = OWN[name]["build"]

    assert (ROOT / build["context"] / build["dockerfile"]).is_file()
    for pins in build["args"]["PINS"].split():
        assert (ROOT / "requirements" / f"{pins}.txt").is_file()


def test_the_dockerfile_pins_its_base_and_leaves_root() -> None:
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)

    assert bases
    assert len(set(bases)) == 1
    assert EXACT_TAG.fullmatch(bases[0])
    assert re.findall(r"^USER (\S+)", DOCKERFILE, re.MULTILINE) == ["10001:10001"]


def test_what_the_dockerfile_copies_exists_and_is_not_ignored() -> None:
    copied = re.findall(r"^COPY (?!--from)(\S+) ", DOCKERFILE, re.MULTILINE)
    ignore = (ROOT / "infra" / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()

    assert copied
    for folder in copied:
        assert (ROOT / folder).is_dir()
        assert f"!{folder}" in ignore


def test_the_broker_is_the_one_that_the_contract_suite_runs_on() -> None:
    pom = (ROOT / "infra" / "kafka" / "pom.xml").read_text(encoding="utf-8")
    (version,) = re.findall(r"<kafka\.version>(.+)</kafka\.version>", pom)

    assert SERVICES["kafka"]["image"] == f"apache/kafka:{version}"
    assert SERVICES["kafka"]["environment"]["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"


def test_every_service_of_ours_is_scraped_under_the_name_of_its_module() -> None:
    text = (ROOT / "infra" / "observability" / "prometheus.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["scrape_configs"]
    scraped = {name: job for job in jobs for config in job["dns_sd_configs"] for name in config["names"]}

    assert scraped.keys() == OWN.keys()
    for name in OWN:
        (rule,) = [each for each in scraped[name]["relabel_configs"] if each["target_label"] == "service"]
        found = re.fullmatch(rule.get("regex", "(.*)"), name)
        assert found is not None
        assert found[1] == VARIANTS.get(name, name)


@each_own
def test_every_service_finds_the_broker_by_its_name(name: str) -> None:
    host, _, port = OWN[name]["environment"]["RAILBUS_KAFKA_BOOTSTRAP"].partition(":")

    assert host in SERVICES
    assert f"://{host}:{port}" in SERVICES[host]["environment"]["KAFKA_ADVERTISED_LISTENERS"]


@pytest.mark.parametrize("name", [name for name, service in SERVICES.items() if "volumes" in service])
def test_what_is_mounted_exists(name: str) -> None:
    for volume in SERVICES[name]["volumes"]:
        if isinstance(volume, dict):  # the user's own folder, and an error where it does not exist
            assert volume["bind"] == {"create_host_path": False}
            continue
        source = re.sub(r"\$\{\w+:-([^}]+)\}", r"\1", volume).split(":")[0]
        assert source in COMPOSE["volumes"] or (ROOT / source).is_dir()
