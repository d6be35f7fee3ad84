"""``railbus up``: start every service as a separate process, and keep them running until Ctrl-C."""

import argparse
import asyncio
import os
import shutil
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, get_args
from urllib.parse import urlsplit

from services.cli.client.chat_request import ChatRequest
from services.cli.show.answer_printer import AnswerPrinter, print_answer
from services.cli.tree.config import (
    COUNTED,
    EDGE_PORT,
    GENERATOR_PYTHON,
    check_counts,
    check_engine_flags,
    check_log_flags,
    cloud_mode,
    engine_options,
    is_traced,
    tree_config,
    upstream_url,
)
from services.cli.tree.extras import (
    MODEL_PATH,
    bring_weights,
    has_ledger,
    need_embedded,
    require_audit,
    require_governance,
    require_ledger,
    require_otel,
    require_vertex,
)
from services.cli.tree.ports import port_or_free
from services.cli.tree.process_specs import CLOUD_LABELS, KAFKA_RUNNER, LOOPBACK, TreeConfig, process_specs
from services.cli.tree.state_file import RunningTree, state_dir, tree_lock, write_state
from services.cli.tree.supervisor import Supervisor
from services.runtime.errors import UserError
from services.runtime.process import EXIT_INTERRUPTED
from services.runtime.process import run as run_process
from services.runtime.settings import load_settings, without_login
from services.worker.engine import EngineName

SAMPLE_PROMPT: Final = "What is a newspaper?"
"""Question that the default model, SmolLM2-135M, answers in a few correct sentences at temperature 0."""

UPSTREAM_TIMEOUT_S: Final = 15.0
"""Maximum time to wait until the model server of ``--upstream-url`` accepts a connection."""

UPSTREAM_RETRY_S: Final = 0.5

TLS_CERT: Final = "RAILBUS_EDGE_TLS_CERT"
"""Variable with the certificate of the edges. If it is set, they speak only HTTPS."""


MAX_HELD_LINES: Final = 1_000
"""Maximum number of lines that are kept until an answer ends. If there are more, the oldest lines are dropped."""


class StatusLines:
    def __init__(self) -> None:
        self._held: deque[str] | None = None

    def say(self, text: str) -> None:
        if self._held is None:
            # On a full disk, or after the reader of a pipe has ended, lines are lost. An error here would end the
            # reading of what a service says, and the service would stand still at a full pipe.
            with suppress(OSError):
                sys.stderr.write(f"{text}\n")
                sys.stderr.flush()
        else:
            self._held.append(text)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold back status lines until the ``with`` block ends. Then write the newest ``MAX_HELD_LINES`` of them."""
        held = self._held = deque(maxlen=MAX_HELD_LINES)
        try:
            yield
        finally:
            self._held = None
            for text in held:
                self.say(text)


_status = StatusLines()
_say = _status.say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        choices=get_args(EngineName),
        default="llama",
        help="engine that generates the answers (default: %(default)s)",
    )
    parser.add_argument(
        "--port",
        type=int,
        help=f"port of the edge; 0 means any free port (default: {EDGE_PORT}, or any free port if that is in use)",
    )
    parser.add_argument("--upstream-url", metavar="URL", help="engine openai: address of an OpenAI-compatible server")
    parser.add_argument("--model", help="name of the model; engine openai: which of the server's models to use")
    parser.add_argument(
        "--model-path", metavar="PATH", help="engine llama: a GGUF file; engine vllm: the folder of a model"
    )
    parser.add_argument("--draft-path", metavar="DIR", help="engine vllm: folder of the draft model")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="use this broker instead of the embedded one")
    parser.add_argument(
        "--kafka-nodes",
        type=int,
        metavar="N",
        help="start N nodes of Apache Kafka instead of the embedded broker (needs Java, Maven and a checkout)",
    )
    for flag, service in COUNTED.items():
        more = "; further edges take the ports after the first edge's" if service == "edge" else ""
        parser.add_argument(
            f"--{flag}",
            type=int,
            default=1,
            metavar="N",
            help=f"number of {service} processes (default: %(default)s){more}",
        )
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR",
        help="folder for the log of the embedded broker or of --kafka-nodes (default: in the state folder, .railbus)",
    )  # fmt: skip
    parser.add_argument(
        "--forget", action="store_true", help="delete the embedded broker's log of earlier runs, and begin a new log"
    )
    parser.add_argument(
        "--archive",
        metavar="DIR",
        help="archive every record in this folder, or in s3://bucket/path; the signing key of a folder is DIR-key.pem",
    )
    parser.add_argument(
        "--governed",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="check prompts and answers, with the services rails and safety (default: yes)",
    )
    cloud = parser.add_mutually_exclusive_group()
    cloud.add_argument("--vertex", action="store_true", help="send late and failed requests to Vertex AI")
    cloud.add_argument(
        "--vertex-emulator",
        action="store_true",
        help="send late and failed requests to an emulator of Vertex AI on this machine",
    )
    parser.add_argument(
        "--ledger",
        action=argparse.BooleanOptionalAction,
        default=has_ledger(),
        help="run the ledger service (default: if faust-streaming is installed)",
    )
    parser.add_argument(
        "--batch",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run the batch service, for `railbus batch` and /v1/batches (default: yes)",
    )
    parser.add_argument(
        "--traces",
        metavar="URL",
        help="send a trace of each request to this OpenTelemetry collector (default: $OTEL_EXPORTER_OTLP_ENDPOINT)",
    )
    parser.add_argument(
        "--no-redis",
        action="store_true",
        help="run without Redis: each process has its own cache, and each edge its own rate limits",
    )
    parser.add_argument(
        "--ask",
        metavar="PROMPT",
        nargs="?",
        const=SAMPLE_PROMPT,
        help="ask this prompt, or a sample question, when all is ready",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="ask (see --ask), and stop after the answer; exit codes are those of `railbus ask`",
    )


def run(args: argparse.Namespace) -> int:
    """Return 0 after a clean stop, 1 after a crash, or 2 for a usage error.

    With ``--once``, return the exit code that ``railbus ask`` has for the same answer, or 130 if a signal came before
    the answer.

    Raises:
        BrokenPipeError: The program that reads the output has ended. All processes are stopped.
    """
    check_engine_flags(args)
    check_counts(args)
    check_log_flags(args)
    if args.engine == "llama" and GENERATOR_PYTHON not in os.environ:
        need_embedded()
    if args.governed:
        require_governance(instead=", or start without them: --no-governed")
    if cloud_mode(args) != "off":
        require_vertex()
    if args.ledger:
        require_ledger()
    if args.archive is not None:
        require_audit()
    if is_traced(args):
        require_otel()
    code = EXIT_INTERRUPTED if args.once else 0
    unread: BrokenPipeError | None = None

    async def main() -> None:
        nonlocal code, unread
        folder = state_dir()
        with tree_lock(folder):
            try:
                code = await _serve(args, folder)
            except BrokenPipeError as error:
                unread = error

    try:
        run_process(main, "up")
    except SystemExit as end:
        if unread is not None:
            raise unread from None
        return int(end.code or 0) or code


async def _serve(args: argparse.Namespace, folder: Path) -> int:
    if args.engine == "llama":
        if args.port is not None:
            port_or_free(args.port, "--port")  # report a port in use before the download
        await bring_weights(engine_options(args))
    if args.kafka_nodes is not None:
        await _bring_kafka()
    config = tree_config(args, folder, _say)
    if args.kafka is not None:
        await _check_broker(args.kafka)
    upstream = upstream_url(args)
    if upstream is not None:
        await _check_upstream(upstream)
    specs = process_specs(config)
    edges = edge_urls(config, os.environ)
    url = edges[0]
    health = {name: f"http://{LOOPBACK}:{port}" for name, port in config.health_ports.items()}
    serving = False

    def started() -> None:
        tree = RunningTree(
            pid=os.getpid(), url=url, kafka=config.kafka, partitions=_partitions(), redis_url=config.redis_url,
            pids=supervisor.pids, health=health, edges=edges,
            batch_dir=None if config.batch_dir is None else str(config.batch_dir),
        )  # fmt: skip
        try:
            write_state(tree, folder)
        except UserError as error:
            if not serving:
                raise
            _say(str(error))  # the services go on; only the process ids in the state file are old

    _say(f"starting {', '.join(spec.name for spec in specs if spec.awaited)}")
    supervisor = Supervisor(specs, _say, started)
    async with supervisor.running():
        serving = True
        _say("\n".join(_describe_tree(config, edges)))
        print(f"ready {url} fallback={CLOUD_LABELS[config.cloud]}", flush=True)
        prompt = args.ask or (SAMPLE_PROMPT if args.once else None)
        code = 0
        if prompt is not None:
            _say(describe_model(config))
            with _status.hold():
                code = await _ask(url, prompt)
        if not args.once:
            _say(next_steps(url, _program()))
            await asyncio.Event().wait()
        return code


def edge_urls(config: TreeConfig, env: Mapping[str, str]) -> list[str]:
    scheme = "https" if env.get(TLS_CERT) else "http"  # the edges read the same environment
    return [f"{scheme}://{LOOPBACK}:{port}" for port in config.edge_ports]


def _describe_tree(config: TreeConfig, edges: Sequence[str]) -> Iterator[str]:
    yield f"engine {config.engine}, broker {config.kafka}, Redis {without_login(config.redis_url or 'none')}"
    if config.broker_port is not None:
        yield f"log {config.log_dir}: prompts and answers stay there for a week; --forget removes them at a start"
    if len(edges) > 1:
        yield f"edges {' '.join(edges)}"


def describe_model(config: TreeConfig) -> str:
    path = config.options.get(MODEL_PATH) or os.environ.get(MODEL_PATH)
    match config.engine:
        case "simulated":
            return "model: none; engine simulated makes up words, at the speed of a large model"
        case "openai":
            return "model: that of the server at --upstream-url"
        case "llama" if path is None:
            return (
                "model: SmolLM2-135M, a very small one (135 million parameters) on this machine's CPU: good for trying"
                " Railbus, often wrong; for another give --model-path FILE.gguf"
            )
        case _:
            return f"model: {path}"


def next_steps(url: str, program: str) -> str:
    return (
        f'\nnext: open {url} in a browser; in another terminal, in this folder: {program} ask "What is a library?"\n'
        "      Ctrl-C here stops everything"
    )


def _program() -> str:
    program = Path(sys.argv[0])
    if program.suffix == ".py":
        return f"{Path(sys.executable).name} -m services.cli"
    found = shutil.which(program.name)
    if found is not None and Path(found).resolve() == program.resolve():
        return program.name
    return os.path.relpath(program)


def _partitions() -> int:
    from services.bus import BusSettings  # imported while the servers start; the import takes as long

    return load_settings(BusSettings).partitions


async def _check_broker(kafka: str) -> None:
    from services.bus import BusSettings, partition_counts
    from services.cli.common import reaching_broker, with_broker

    settings = with_broker(load_settings(BusSettings), kafka)
    async with reaching_broker(settings, "start it, correct --kafka, or leave --kafka out to use the embedded broker"):
        await partition_counts(settings)


async def _bring_kafka() -> None:
    if not KAFKA_RUNNER.exists():
        raise UserError("--kafka-nodes needs a checkout of the repository: take --kafka with a cluster that runs")
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(KAFKA_RUNNER), "--fetch-only", stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if process.returncode:
        lines = said.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise UserError(
            f"--kafka-nodes: {lines[-1].removeprefix('kafka: ')}; or leave it out: the embedded broker needs neither"
        )


async def _check_upstream(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return
    if host is None or parts.scheme not in {"http", "https"}:
        return
    reason, waiting, shown = "no answer", False, without_login(url)
    try:
        async with asyncio.timeout(UPSTREAM_TIMEOUT_S):
            while True:
                try:
                    _, writer = await asyncio.open_connection(host, port)
                except OSError as error:
                    reason = error.strerror or str(error)
                else:
                    writer.close()
                    return
                if not waiting:
                    _say(f"waiting up to {UPSTREAM_TIMEOUT_S:.0f} s for the model server at {shown} ({reason})")
                waiting = True
                await asyncio.sleep(UPSTREAM_RETRY_S)
    except TimeoutError:
        raise UserError(f"no model server at {shown} ({reason}): start it, or correct --upstream-url") from None


async def _ask(url: str, prompt: str) -> int:
    from services.cli.client.edge_client import API_KEY_VARIABLE, EdgeAddress, ask_edge

    print(f"\n> {prompt}\n", flush=True)
    request = ChatRequest(prompt=prompt, temperature=0)
    printer = AnswerPrinter.for_stdout()
    return await print_answer(
        ask_edge(request, EdgeAddress(url, os.environ.get(API_KEY_VARIABLE)), printer.take), printer
    )
