"""Count the function calls that a request costs each service. A busy machine does not change this figure.

    python -m tests.bench.calls                               this checkout
    python -m tests.bench.calls --against DIR                 and another one, such as a work tree of an older commit
    python -m tests.bench.calls --against DIR --by edge       one service, by package

Each checkout runs a governed tree with the simulated engine, and gets the same bursts of short requests. Python's own
profiler counts the calls of Python and C functions in the main thread of each service. The number of calls shows how
much work a change adds, but not how much time. ``tests.bench.added_ttft`` measures CPU time.
"""

import argparse
import asyncio
import pstats
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import aiohttp
import psutil

from tests.bench.added_ttft import ROOT, railbus_up

HOOK = Path(__file__).with_name("kit") / "counted"
SERVICES = ("edge", "router", "rails", "safety", "generator", "broker", "batch", "ledger")
WARM_UP = 6
"""Number of bursts in a row that must be answered before the counting starts.

Rails are ready later than other services. Until then, requests are refused, because no verdict comes in time.
"""

WARM_UP_S = 90.0

SETTLE_S = 2.0
"""Seconds to wait after the last answer of a phase, in which accounts and receipts are written."""

Calls = Counter[str]
"""Number of function calls per request, by package."""


def count(checkout: Path, given: argparse.Namespace, options: list[str]) -> dict[str, Calls]:
    """Run the services of a checkout. Return for each service how many function calls a request costs, by package.

    Args:
        checkout: Folder of the checkout.
        given: Options of the command line.
        options: More options of ``railbus up``.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {"PYTHONPATH": f"{checkout}:{HOOK}", "RAILBUS_CALLS_DIR": folder}
        up = ("--engine", "simulated", "--no-redis", "--governed", *options)
        with railbus_up(checkout, given.port, *up, environment=environment) as tree:
            time.sleep(SETTLE_S)
            services = [each for each in psutil.Process(tree.pid).children(recursive=True) if _service(each)]
            url = f"http://127.0.0.1:{given.port}/v1/chat/completions"
            wrong = asyncio.run(ask(url, given.streams, given.bursts, given.tokens, services))
            if wrong is not None:
                sys.exit(f"no answer: {wrong}")
            wanted = {f"{_service(each)}.prof" for each in services}
            ends = time.monotonic() + 30
            while {each.name for each in Path(folder).glob("*.prof")} < wanted and time.monotonic() < ends:
                time.sleep(0.1)
        files = sorted(Path(folder).glob("*.prof"))
        return {each.stem: by_package(each, given.streams * given.bursts) for each in files}


def _service(process: psutil.Process) -> str | None:
    command = process.cmdline()
    return next((name for name in SERVICES if f"services.{name}" in command), None)


async def ask(url: str, streams: int, bursts: int, tokens: int, services: list[psutil.Process]) -> str | None:
    """Send bursts of requests, and let the services count the function calls that the bursts cause.

    The counting begins after a warm-up, and ends ``SETTLE_S`` seconds after the last answer, so that it includes the
    receipts. Return None on success. Otherwise, return the status and the beginning of a response that is no answer.

    Args:
        url: Address of the edge's chat completions.
        streams: Number of requests in a burst.
        bursts: Number of bursts after the warm-up.
        tokens: Tokens of each answer.
        services: Processes of the services.
    """

    async def one(client: aiohttp.ClientSession, number: int) -> str | None:
        body = {
            "model": f"simulated-n{tokens}", "stream": True,
            "messages": [{"role": "user", "content": f"Tell me about river number {number}."}],
        }  # fmt: skip
        async with client.post(url, json=body) as response:
            text = await response.text()
            return None if response.status == 200 and "[DONE]" in text else f"{response.status} {text[:300]}"

    async def burst(client: aiohttp.ClientSession, first: int) -> str | None:
        said = await asyncio.gather(*(one(client, first + number) for number in range(streams)))
        await asyncio.sleep(0.1)
        return next((each for each in said if each is not None), None)

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as client:
        whole, first, ends = 0, 0, time.monotonic() + WARM_UP_S
        while whole < WARM_UP:
            wrong = await burst(client, first)
            if wrong is not None and time.monotonic() > ends:
                return wrong
            whole, first = (whole + 1 if wrong is None else 0), first + streams
        await asyncio.sleep(SETTLE_S)
        _switch(services)
        for number in range(bursts):
            if (wrong := await burst(client, first + number * streams)) is not None:
                return wrong
    await asyncio.sleep(SETTLE_S)
    _switch(services)
    return None


def _switch(services: list[psutil.Process]) -> None:
    for each in services:
        each.send_signal(signal.SIGUSR1)


def by_package(profile: Path, requests: int) -> Calls:
    """Read a profile from a file. Return, for each package, the number of calls per request.

    ``requests`` is the number of requests that were answered while the profile was recorded.
    """
    found: Counter[str] = Counter()
    for (file, _, _), (_, calls, *_rest) in pstats.Stats(str(profile)).stats.items():  # type: ignore[attr-defined]
        found[_package(file)] += calls / requests
    return found


def _package(file: str) -> str:
    if file == "~":
        return "C functions"
    for root in ("/site-packages/", "/services/", "/schemas/"):
        before, _, after = file.rpartition(root)
        if before:
            name = "services/" if root == "/services/" else "schemas" if root == "/schemas/" else ""
            return name + ("" if name == "schemas" else after.split("/")[0].removesuffix(".py"))
    return "standard library"


def show(names: list[str], rows: dict[str, list[float]]) -> None:
    """Print a table with one column for each of the names. If there are two columns, also print their ratio."""
    heads = [*names, *(["ratio"] if len(names) > 1 else [])]
    print(f"| calls a request | {' | '.join(heads)} |")
    print(f"|{'---|' * (len(heads) + 1)}")
    for name, values in rows.items():
        ratio = [f"{values[0] / values[1]:.2f}" if values[1] else "-"] if len(values) > 1 else []
        print(f"| {name} | {' | '.join([*(f'{value:.0f}' for value in values), *ratio])} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout to compare with")
    parser.add_argument("--by", choices=SERVICES, help="show only this service, with a row per package")
    parser.add_argument("--streams", type=int, default=16, help="requests per burst (default: %(default)s)")
    parser.add_argument("--bursts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=5, help="tokens of an answer (default: %(default)s)")
    parser.add_argument(
        "--option", action="append", default=[], help="further option of this checkout's `railbus up`; repeatable"
    )
    parser.add_argument("--port", type=int, default=18090, help="port of the edge (default: %(default)s)")
    given = parser.parse_args()
    found = [count(ROOT, given, given.option)]
    names = ["here"]
    if given.against is not None:
        names.append("there")
        found.append(count(given.against.resolve(), given, []))
    if given.by is not None:
        each = [tree.get(given.by, Counter()) for tree in found]
        packages = sorted(set().union(*each), key=lambda name: -max(calls[name] for calls in each))
        show(names, {name: [calls[name] for calls in each] for name in packages})
        return
    services = [name for name in SERVICES if any(name in tree for tree in found)]
    rows = {name: [sum(tree.get(name, Counter()).values()) for tree in found] for name in services}
    show(names, rows | {"all": [sum(values) for values in zip(*rows.values(), strict=True)]})


if __name__ == "__main__":
    main()
