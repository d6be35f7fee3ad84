"""Commands, environment and start order of the processes of ``railbus up``. Pure functions."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from services.worker.engine import EngineName

CloudMode = Literal["off", "vertex", "emulator"]

LOOPBACK: Final = "127.0.0.1"

READY_TIMEOUT_S: Final = 60.0
"""Maximum time from the start of a process to its ready line."""

KAFKA_START_TIMEOUT_S: Final = 120.0
"""Maximum time from start to ready line for Apache Kafka, without its download. Each node first formats its storage."""

KAFKA_RUNNER: Final = Path(__file__).resolve().parents[3] / "infra" / "kafka" / "run.py"
"""Script that starts Apache Kafka. It exists only in a checkout of the repository."""

LOAD_TIMEOUT_S: Final[Mapping[EngineName, float]] = {"vllm": 7_600.0, "llama": 1_200.0}
"""Maximum time from start to ready line of a generator that loads a model. For vLLM it is above the largest
``RAILBUS_VLLM_START_TIMEOUT_S`` and the time for the first token, so that the generator itself says what took long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeConfig:
    """Configuration of the processes of one ``railbus up``.

    Attributes:
        kafka: The brokers, ``HOST:PORT``, separated by commas.
        broker_port: Port of the embedded broker; None if another broker is used.
        redis_port: Port of the Redis server to start; None if none is started.
        redis_program: Path of the Redis server to start; None if none is started.
        redis_url: Address of the Redis server that the services use; None if they use none.
        health_ports: By process name, the port of the process's health endpoint. Edges are not included.
        governed: Whether the services ``rails`` and ``safety`` run.
        emulator_port: Port of the Vertex AI emulator; None if it does not run.
        options: Environment variables for every service.
        counts: Number of processes of each service, by default one.
        archive: Environment variables of the archiver; empty if it does not run.
        batch_dir: Folder of the files of batch jobs; None if the batch service does not run.
        ledger_dir: Folder of the ledger's own files; None if the ledger does not run.
    """

    engine: EngineName
    edge_port: int
    kafka: str
    broker_port: int | None
    log_dir: Path
    redis_port: int | None
    redis_program: Path | None
    redis_url: str | None
    health_ports: Mapping[str, int]
    governed: bool = False
    cloud: CloudMode = "off"
    traced: bool = False
    emulator_port: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    generator_python: str = sys.executable
    counts: Mapping[str, int] = field(default_factory=dict)
    more_edge_ports: tuple[int, ...] = ()
    kafka_nodes: int = 0
    ledger_dir: Path | None = None
    archive: Mapping[str, str] = field(default_factory=dict)
    batch_dir: Path | None = None

    @property
    def edge_ports(self) -> tuple[int, ...]:
        return (self.edge_port, *self.more_edge_ports)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProcessSpec:
    """Command and environment of one process.

    Attributes:
        name: Name of the service. The second process of a service and later ones have a number, such as ``edge-2``.
        stage: Lower stages are started first and stopped last.
        env: Environment variables in addition to those of ``railbus up``.
        ready: Text in the line that the process prints when it serves.
        ready_s: Maximum time until this line, in seconds.
        awaited: If True, the start waits for this process, and ``railbus up`` ends if the process cannot be kept
            running. If False, ``railbus up`` goes on without the process.
    """

    name: str
    stage: int  # those of stage 0 must be ready before higher stages start
    command: tuple[str, ...]
    env: Mapping[str, str]
    ready: str = "ready"
    ready_s: float = READY_TIMEOUT_S
    nice: int = 0
    awaited: bool = True  # if false, started after those for which it is true


NICENESS: Final[Mapping[str, int]] = {
    "router": 10, "safety": 10, "audit": 15, "batch": 15, "tracer": 15, "ledger": 19,
}  # fmt: skip
"""Nice levels of services that no first token waits for, so that the other services run first when many requests start
at once. On two cores, 64 simultaneous governed requests had their first tokens 41 to 48 ms later than without Railbus.
Without nice levels they were 53 to 73 ms later."""

CORE_SERVICES: Final = ("generator", "router")
"""Services that always run beside the edge. Each is ``python -m services.NAME`` with settings from the environment."""

GOVERNANCE_SERVICES: Final = ("rails", "safety")
"""Services that judge prompts and check answers, started like ``CORE_SERVICES``."""

GOVERNANCE_SETTINGS: Final[Mapping[str, str]] = {"RAILBUS_INPUT_GATE": "hold", "RAILBUS_OUTPUT_CHECK": "on"}
"""Environment of every service when the governance services run."""

UNGOVERNED_SETTINGS: Final[Mapping[str, str]] = {"RAILBUS_INPUT_GATE": "off", "RAILBUS_OUTPUT_CHECK": "off"}
"""Environment of every service if the governance services do not run. Unchecked text is shown only if router, edge and
worker all have these settings."""

CLOUD_SERVICES: Final = ("vertex",)
"""Services that run later attempts in the cloud, started like ``CORE_SERVICES``."""

AUDIT_SERVICES: Final = ("audit",)
"""Services that archive the log, started like ``CORE_SERVICES``."""

TRACE_SERVICES: Final = ("tracer",)
"""Services that send traces to a collector, started like ``CORE_SERVICES``."""

CLOUD_LABELS: Final[Mapping[CloudMode, str]] = {"off": "off", "vertex": "vertex", "emulator": "vertex-emulator"}
"""For each value of ``TreeConfig.cloud``, what the ready line of ``railbus up`` shows as ``fallback``."""

EMULATOR_MODEL: Final = "emulated"
"""Model name in the emulator's answers, which come from no model."""

EMULATOR_NOTICE: Final = (
    "Late and failed requests fall back to an emulator of Vertex AI on this machine: no model answers there."
)
"""Notice on the edge's web page while the emulator is in use."""


LEDGER: Final = "ledger"
"""The service that writes the ledger. No answer waits for it."""

BATCH: Final = "batch"
"""The service that runs batch jobs. No interactive answer waits for it."""

STOP_SETTINGS: Final[Mapping[str, str]] = {"RAILBUS_GENERATOR_DRAIN_MS": "2000", "RAILBUS_VERTEX_DRAIN_MS": "2000"}
"""Drain times of the workers when all services stop. They are short, because the edge stops first, so that nobody reads
answers that end later, and because each stage has only five seconds."""


def service_names(
    *, governed: bool, cloud: CloudMode = "off", archived: bool = False, traced: bool = False
) -> tuple[str, ...]:
    """Return the names of the services that run with these options, except ``edge``, ``batch`` and ``ledger``."""
    return (
        CORE_SERVICES
        + (GOVERNANCE_SERVICES if governed else ())
        + (CLOUD_SERVICES if cloud != "off" else ())
        + (AUDIT_SERVICES if archived else ())
        + (TRACE_SERVICES if traced else ())
    )


def process_names(service: str, counts: Mapping[str, int]) -> tuple[str, ...]:
    return service, *(f"{service}-{number}" for number in range(2, counts.get(service, 1) + 1))


def process_specs(config: TreeConfig) -> list[ProcessSpec]:
    found: list[ProcessSpec] = []
    if config.broker_port is not None:
        found.append(_broker(config.broker_port, config.log_dir))
    if config.kafka_nodes:
        found.append(_kafka(config.kafka, config.kafka_nodes, config.log_dir))
    if config.redis_port is not None and config.redis_program is not None:
        found.append(_redis(config.redis_port, config.redis_program))
    if config.emulator_port is not None:
        found.append(_emulator(config.emulator_port))
    services = service_names(
        governed=config.governed, cloud=config.cloud, archived=bool(config.archive), traced=config.traced
    )
    for service in services:
        found += [_service(service, name, 1, config) for name in process_names(service, config.counts)]
    for name, port in zip(process_names("edge", config.counts), config.edge_ports, strict=True):
        found.append(_service("edge", name, 2, config, edge_port=port))
    if config.batch_dir is not None:
        found.append(replace(_service(BATCH, BATCH, 3, config), awaited=False))
    if config.ledger_dir is not None:
        folder = {"RAILBUS_LEDGER_DATA_DIR": str(config.ledger_dir)}
        ledger = _service(LEDGER, LEDGER, 3, config)
        found.append(replace(ledger, env={**ledger.env, **folder}, awaited=False, ready_s=KAFKA_START_TIMEOUT_S))
    return found


def _broker(port: int, log_dir: Path) -> ProcessSpec:
    return ProcessSpec(
        name="broker",
        stage=0,
        command=(
            *_module("broker"),
            "--host",
            LOOPBACK,
            "--port",
            str(port),
            "--data-dir",
            str(log_dir),
            "--no-auto-create-topics",
        ),
        env={},
    )


def _kafka(addresses: str, nodes: int, log_dir: Path) -> ProcessSpec:
    first = addresses.partition(",")[0].rpartition(":")[2]
    command: tuple[str, ...] = (sys.executable, str(KAFKA_RUNNER), "--port", first, "--data-dir", str(log_dir))
    if nodes > 1:
        command += ("--nodes", str(nodes), "--restart")
    return ProcessSpec(name="kafka", stage=0, command=command, env={}, ready_s=KAFKA_START_TIMEOUT_S)


def _redis(port: int, program: Path) -> ProcessSpec:
    options = {
        "--port": str(port),
        "--bind": LOOPBACK,
        "--save": "",
        "--appendonly": "no",
        # A request whose idempotency key was evicted could run twice. The rails' answers are there for an hour. While
        # Redis is full, each edge counts by itself, and rails keep their answers only in their own memory.
        "--maxmemory": "256mb",
        "--maxmemory-policy": "noeviction",
        "--logfile": "",
    }
    arguments = [part for option in options.items() for part in option]
    return ProcessSpec(name="redis", stage=0, command=(str(program), *arguments), env={}, ready="Ready to accept")


def _emulator(port: int) -> ProcessSpec:
    return ProcessSpec(
        name="vertex-emulator", stage=0, command=(*_module("devtools.vertex"), "--port", str(port)), env={}
    )


def _service(service: str, name: str, stage: int, config: TreeConfig, *, edge_port: int | None = None) -> ProcessSpec:
    env = {
        "RAILBUS_KAFKA_BOOTSTRAP": config.kafka,
        "RAILBUS_ENGINE": config.engine,
        "RAILBUS_EDGE_HOST": LOOPBACK,
        "RAILBUS_EDGE_PORT": str(edge_port or config.edge_port),
        "RAILBUS_HEALTH_PORT": str(config.health_ports.get(name, 0)),
        "RAILBUS_REDIS_URL": config.redis_url or "",  # without one, whatever the environment says
        # The name makes it a static group member, which gets its partitions back at once after a restart.
        f"RAILBUS_{service.upper()}_INSTANCE": name,
        **STOP_SETTINGS,
        **(GOVERNANCE_SETTINGS if config.governed else UNGOVERNED_SETTINGS),
        **_fallback(config),
        **(config.archive if service in AUDIT_SERVICES else {}),
        **config.options,
    }
    if config.batch_dir is not None and service in {BATCH, "edge"}:
        env["RAILBUS_BATCH_DIR"] = str(config.batch_dir)
    if service != "generator":
        return ProcessSpec(name=name, stage=stage, command=_module(service), env=env, nice=NICENESS.get(service, 0))
    command = _module(service, config.generator_python)
    ready_s = LOAD_TIMEOUT_S.get(config.engine, READY_TIMEOUT_S)
    return ProcessSpec(name=name, stage=stage, command=command, env=env, ready_s=ready_s)


def _fallback(config: TreeConfig) -> dict[str, str]:
    if config.cloud == "off":
        return {"RAILBUS_FALLBACK": "off"}  # whatever the environment says, because no worker would answer there
    if config.emulator_port is None:
        return {"RAILBUS_FALLBACK": "vertex"}
    return {
        "RAILBUS_FALLBACK": "vertex",
        "RAILBUS_VERTEX_URL": f"http://{LOOPBACK}:{config.emulator_port}",
        "RAILBUS_VERTEX_MODEL": EMULATOR_MODEL,
        "RAILBUS_EDGE_NOTICE": EMULATOR_NOTICE,
    }


def _module(name: str, python: str = sys.executable) -> tuple[str, ...]:
    # -P, because the folder where `up` was started may have another folder `services`
    return (python, "-P", "-m", f"services.{name}")
