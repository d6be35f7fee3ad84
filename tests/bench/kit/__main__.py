"""Run the test model server of the benchmarks, or the load client.

    python -m tests.bench.kit upstream --port 9100
    python -m tests.bench.kit load --url http://127.0.0.1:9100 --streams 64 --requests 256
    python -m tests.bench.kit load --url http://127.0.0.1:9100 --rate 40 --requests 1000

``upstream`` runs the test model server until it is interrupted. The name of the model in a request sets the times and
faults of the answer. ``tests/bench/kit/schedule.py`` describes these names.

``load`` sends requests to a server, and prints the figures as one JSON object. With ``--rate``, the load is open-loop:
latency counts from the time when a request was due, even if it was sent later. ``--tree NAME=PID`` adds the CPU time
and memory of that process and all its descendants to the figures.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import uvloop

from tests.bench.kit.figures import Answer, summary
from tests.bench.kit.load import Client, closed_loop, open_loop, session
from tests.bench.kit.schedule import ScheduleError, parse_schedule
from tests.bench.kit.upstream import serve
from tests.bench.kit.usage import machine_busy_s, tree_cpu_s, tree_rss_mib
from tests.bench.kit.workload import SAME_PROMPT, poisson_arrivals, prompt

FEW_WARM = 64


def main() -> int:
    """Run the command, and return its exit code. ``load`` returns 1 if an answer was incomplete or had a wrong text."""
    options = arguments().parse_args()
    try:
        if options.what == "upstream":
            uvloop.run(upstream(options.port, options.journal))
            return 0
        figures = uvloop.run(load(options))
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        sys.exit(f"{options.what}: {error}")
    print(json.dumps(figures))
    return 0 if figures["ok"] == figures["requests"] and not figures["wrong_text"] else 1


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.kit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_subparsers(dest="what", required=True)
    server = what.add_parser("upstream", help="run a model server that answers on a fixed schedule")
    server.add_argument(
        "--port", type=int, default=0, help="port to listen on; 0 means any free port (default: %(default)s)"
    )
    server.add_argument(
        "--journal", type=Path, help="file to which the server appends a line for each event of a request"
    )
    client = what.add_parser("load", help="send requests to a server, and print how long they took")
    client.add_argument("--url", required=True, help="address of the server, without /v1")
    client.add_argument("--model", default="fake-A-t30-g20-n50", help="model to ask (default: %(default)s)")
    how = client.add_mutually_exclusive_group()
    how.add_argument(
        "--streams", type=positive, default=1, help="closed loop: number of requests at once (default: %(default)s)"
    )
    how.add_argument("--rate", type=positive_number, help="open loop: mean requests per second of a Poisson process")
    client.add_argument(
        "--requests", type=positive, default=20, help="number of measured requests (default: %(default)s)"
    )
    client.add_argument(
        "--warmup",
        type=int,
        help="number of requests before the measured ones (default: two per stream up to 64, at least one per stream)",
    )
    client.add_argument(
        "--most-open",
        type=positive,
        default=4_096,
        help="open loop: maximum number of requests at once (default: %(default)s)",
    )
    client.add_argument("--seed", type=int, default=1, help="seed of prompts and arrivals (default: %(default)s)")
    client.add_argument(
        "--prompts",
        choices=("distinct", "same"),
        default="distinct",
        help="send distinct prompts, or always the same (default: %(default)s)",
    )
    client.add_argument(
        "--timeout-s", type=positive_number, default=120.0, help="maximum time for an answer, in seconds (default: 120)"
    )
    client.add_argument("--header", action="append", default=[], metavar="NAME:VALUE", type=header)
    client.add_argument("--extra", type=json.loads, default={}, help="further fields of the request, as a JSON object")
    client.add_argument("--tree", action="append", default=[], metavar="NAME=PID", type=tree)
    client.add_argument("--answers", action="store_true", help="also print each answer with its times in ms")
    return parser


def positive(value: str) -> int:
    """Convert the value of an option to an integer of at least 1."""
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"{value!r} is no whole number above 0")
    return int(value)


def positive_number(value: str) -> float:
    """Convert the value of an option to a number above 0."""
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{value!r} is no number above 0")
    return number


def header(value: str) -> tuple[str, str]:
    """Split the value of an option, ``NAME:VALUE``, into the name and the value of an HTTP header."""
    name, colon, content = value.partition(":")
    if not (name and colon):
        raise argparse.ArgumentTypeError(f"{value!r} is not NAME:VALUE")
    return name.strip(), content.strip()


def tree(value: str) -> tuple[str, psutil.Process]:
    """Convert the value of an option, ``NAME=PID``, to the name and the running process."""
    name, _, pid = value.partition("=")
    try:
        return name, psutil.Process(int(pid))
    except (ValueError, psutil.NoSuchProcess):
        raise argparse.ArgumentTypeError(f"{value!r} is not NAME=PID of a running process") from None


async def upstream(port: int, journal: Path | None) -> None:
    """Run the test model server until it is cancelled, and append its events to the file ``journal``, if given."""
    file = journal.open("a", encoding="utf-8") if journal is not None else None
    try:
        server = await serve(port, file)
        print(f"ready http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
        async with server:
            await server.serve_forever()
    finally:
        if file is not None:
            file.close()


async def load(options: argparse.Namespace) -> dict[str, Any]:
    """Send the requests of the warm-up and then the measured requests. Return the figures of the measured requests."""
    try:
        expected = parse_schedule(options.model).text
    except ScheduleError:  # the text of a real model's answer is not known
        expected = None
    usual = max(options.streams, min(2 * options.streams, FEW_WARM))  # enough to open the connection of every stream
    warmup = usual if options.warmup is None else options.warmup
    prompts = [
        SAME_PROMPT if options.prompts == "same" else prompt(options.seed, number)
        for number in range(warmup + options.requests)
    ]
    async with session(options.timeout_s) as connections:
        client = Client(
            connections,
            options.url,
            options.model,
            prompts.__getitem__,
            headers=dict(options.header),
            extra=options.extra,
        )
        if warmup:
            await closed_loop(client.ask, streams=options.streams, requests=warmup)
        before = used(options.tree)
        begun_s, busy_s, own_s = time.perf_counter(), machine_busy_s(), time.process_time()
        if options.rate is None:
            answers = await closed_loop(client.ask, streams=options.streams, requests=options.requests, first=warmup)
        else:
            arrivals = poisson_arrivals(options.rate, options.requests, options.seed)
            answers = await open_loop(client.ask, arrivals, most_open=options.most_open, first=warmup)
        wall_s, own_s = time.perf_counter() - begun_s, time.process_time() - own_s
        busy_s, after = machine_busy_s() - busy_s, used(options.tree)
    figures = summary(answers, wall_s, expected)
    figures["client_cpu_s"] = round(own_s, 3)
    spent = {name: after[name] - before[name] for name in after}
    figures["trees"] = {
        name: {
            "cpu_s": round(cpu_s, 3),
            "cpu_ms_per_answer": round(cpu_s * 1e3 / len(answers), 2),
            "rss_mib": round(tree_rss_mib(dict(options.tree)[name]), 1),
        }
        for name, cpu_s in spent.items()
    }
    figures["others_cores"] = round(max(0.0, (busy_s - own_s - sum(spent.values())) / wall_s), 2)
    return figures | ({"answers": [told(answer) for answer in answers]} if options.answers else {})


def used(trees: list[tuple[str, psutil.Process]]) -> dict[str, float]:
    """Return how many seconds of CPU time each named process has used so far, including its descendants."""
    return {name: tree_cpu_s(process) for name, process in trees}


def told(answer: Answer) -> dict[str, Any]:
    """Return an answer as a JSON object. Its times are in milliseconds since the request was due."""

    def since_ms(at_s: float) -> float:
        return round((at_s - answer.intended_s) * 1e3, 2)

    return {
        "error": answer.error,
        "finished": answer.finished,
        "sent_ms": since_ms(answer.sent_s),
        "arrivals_ms": [since_ms(at_s) for at_s in answer.arrivals_s],
        "ended_ms": since_ms(answer.ended_s),
        "text": answer.text,
    }


if __name__ == "__main__":
    sys.exit(main())
