"""The services of one tree: which there are, in which order they start, what each is told. Pure."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from services.worker.engine import EngineName

Cloud = Literal["off", "vertex", "emulator"]

LOOPBACK: Final = "127.0.0.1"

READY_S: Final = 60.0
"""Longest time until a process serves."""

LOADING_S: Final = 1_200.0
"""Longest time until vLLM serves: it reads tens of gigabytes, compiles, and captures graphs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one tree is made of.

    Attributes:
        engine: What generates.
        edge_port: Port of the edge.
        kafka: The broker, ``HOST:PORT``.
        broker_port: Port of the embedded broker; None when ``kafka`` is somebody else's.
        log_dir: Where the embedded broker keeps its log.
        redis_port: Port of the embedded Redis-compatible server; None when there is none.
        redis_program: Its program.
        redis_url: Redis as the services are told; None when there is none.
        health_ports: Port of ``/healthz`` of each service that has no HTTP port of its own.
        governed: Rails and safety run, and nothing is shown before they have spoken.
        cloud: Where late and failed requests go: nowhere, to Vertex AI, or to its emulator.
        emulator_port: Port of the emulator; None when there is none.
        options: Variables that the operator's flags set, for every service.
        generator_python: The interpreter that runs the generator: engines may need an environment of their own.
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
    cloud: Cloud = "off"
    emulator_port: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    generator_python: str = sys.executable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Launch:
    """How one process is started.

    Attributes:
        name: The service.
        stage: The servers are stage 0: they must be ready before anything else starts. The others start together. All
            stop in reverse order of their stages.
        command: Program and arguments.
        env: Variables on top of the supervisor's own.
        ready: What stands in a line on its standard output once it serves.
        ready_s: Longest time from start to that line, in seconds.
        nice: How far it stands back when the processors are short, 0 to 19.
    """

    name: str
    stage: int
    command: tuple[str, ...]
    env: Mapping[str, str]
    ready: str = "ready"
    ready_s: float = READY_S
    nice: int = 0


BEHIND: Final[Mapping[str, int]] = {"router": 10, "safety": 10}
"""Services that no first token waits for: when many requests begin at once they let the others go first. On two cores
the first tokens of 64 simultaneous governed requests came 41 to 48 ms later than without Railbus, not 53 to 73."""

WORKERS: Final = ("generator", "router")
"""Services between the log and the edge: each is ``python -m services.NAME`` with settings from the environment."""

GOVERNANCE: Final = ("rails", "safety")
"""Services that judge prompts and check answers, likewise."""

GOVERNED: Final[Mapping[str, str]] = {"RAILBUS_INPUT_GATE": "hold", "RAILBUS_OUTPUT_CHECK": "on"}
"""What all others are told when these run."""

CLOUD_WORKERS: Final = ("vertex",)
"""Services that serve later attempts, likewise."""

CLOUD_NAMES: Final[Mapping[Cloud, str]] = {"off": "off", "vertex": "vertex", "emulator": "vertex-emulator"}
"""As they are called when everything is ready."""

EMULATED_MODEL: Final = "emulated"
"""The emulator's answers carry a name that is no model's."""

EMULATED: Final = (
    "Late and failed requests fall back to an emulator of Vertex AI on this machine: no model answers there."
)
"""What the page says while it is so."""


def workers(*, governed: bool, cloud: Cloud = "off") -> tuple[str, ...]:
    """The services between the log and the edge that run."""
    return WORKERS + (GOVERNANCE if governed else ()) + (CLOUD_WORKERS if cloud != "off" else ())


def launches(plan: Plan) -> list[Launch]:
    """Every process of the tree, in the order in which they start."""
    found: list[Launch] = []
    if plan.broker_port is not None:
        found.append(_broker(plan.broker_port, plan.log_dir))
    if plan.redis_port is not None and plan.redis_program is not None:
        found.append(_redis(plan.redis_port, plan.redis_program))
    if plan.emulator_port is not None:
        found.append(_emulator(plan.emulator_port))
    found += [_service(name, 1, plan) for name in workers(governed=plan.governed, cloud=plan.cloud)]
    found.append(_service("edge", 2, plan))
    return found


def _broker(port: int, log_dir: Path) -> Launch:
    return Launch(
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


def _redis(port: int, program: Path) -> Launch:
    """A cache: nothing is written to disk, and the oldest goes when 64 MB are full."""
    options = {
        "--port": str(port),
        "--bind": LOOPBACK,
        "--save": "",
        "--appendonly": "no",
        "--maxmemory": "64mb",
        "--maxmemory-policy": "allkeys-lru",
        "--logfile": "",
    }
    arguments = [part for option in options.items() for part in option]
    return Launch(name="redis", stage=0, command=(str(program), *arguments), env={}, ready="Ready to accept")


def _emulator(port: int) -> Launch:
    return Launch(name="vertex-emulator", stage=0, command=(*_module("devtools.vertex"), "--port", str(port)), env={})


def _service(name: str, stage: int, plan: Plan) -> Launch:
    env = {
        "RAILBUS_KAFKA_BOOTSTRAP": plan.kafka,
        "RAILBUS_ENGINE": plan.engine,
        "RAILBUS_EDGE_HOST": LOOPBACK,
        "RAILBUS_EDGE_PORT": str(plan.edge_port),
        "RAILBUS_HEALTH_PORT": str(plan.health_ports.get(name, 0)),
        # One process each: as a static member it takes its partitions up again at once when it was started again.
        f"RAILBUS_{name.upper()}_INSTANCE": name,
        **(GOVERNED if plan.governed else {}),
        **_fallback(plan),
        **plan.options,
    }
    if plan.redis_url is not None:
        env["RAILBUS_REDIS_URL"] = plan.redis_url
    if name != "generator":
        return Launch(name=name, stage=stage, command=_module(name), env=env, nice=BEHIND.get(name, 0))
    ready_s = LOADING_S if plan.engine == "vllm" else READY_S
    return Launch(name=name, stage=stage, command=_module(name, plan.generator_python), env=env, ready_s=ready_s)


def _fallback(plan: Plan) -> dict[str, str]:
    if plan.cloud == "off":
        return {}
    if plan.emulator_port is None:
        return {"RAILBUS_FALLBACK": "vertex"}
    return {
        "RAILBUS_FALLBACK": "vertex",
        "RAILBUS_VERTEX_URL": f"http://{LOOPBACK}:{plan.emulator_port}",
        "RAILBUS_VERTEX_MODEL": EMULATED_MODEL,
        "RAILBUS_EDGE_NOTICE": EMULATED,
    }


def _module(name: str, python: str = sys.executable) -> tuple[str, ...]:
    return (python, "-m", f"services.{name}")
