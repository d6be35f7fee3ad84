"""Compare how long a client waits for ``accepted`` and for the first text, with this checkout and with another one.

    python -m tests.bench.acknowledged --other PATH [--requests 200] [--rounds 2] [--streams 1]

The edge says ``accepted`` only after the broker's acknowledgement. To see what this costs, let ``--other`` name an
older checkout, whose edge does not wait for the acknowledgement. The checkouts run one at a time, in the order A B B A.

Each checkout runs its own ``railbus up`` with the simulated engine, and answers the same requests on a websocket and
over server-sent events. Both times start when the request is sent. The first time ends at ``accepted`` (on a websocket)
or at the response's headers (with server-sent events). The second time ends at the first text.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import aiohttp

from tests.bench.added_ttft import ROOT, railbus_up

WARM_UP: int = 20
Times = dict[str, list[float]]


async def over_websocket(session: aiohttp.ClientSession, url: str, times: Times) -> None:
    async with session.ws_connect(f"{url}/v1/stream") as socket:
        began = time.perf_counter()
        await socket.send_json({"type": "ask", "prompt": "hello", "max_tokens": 4})
        text = False
        async for message in socket:
            said = json.loads(message.data)
            ms = (time.perf_counter() - began) * 1_000
            if said.get("type") == "accepted":
                times["websocket, accepted"].append(ms)
            elif said.get("op") == "show" and not text:
                text = True
                times["websocket, first text"].append(ms)
            elif said.get("op") == "close":
                return


async def over_sse(session: aiohttp.ClientSession, url: str, times: Times) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 4}
    began = time.perf_counter()
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        times["events, headers"].append((time.perf_counter() - began) * 1_000)
        seen = b""
        while b'"content":"' not in seen.replace(b'"content":""', b""):
            seen += await response.content.readany()
        times["events, first text"].append((time.perf_counter() - began) * 1_000)
        await response.read()


async def run(url: str, requests: int, streams: int) -> Times:
    times: Times = defaultdict(list)
    async with aiohttp.ClientSession() as session:

        async def client() -> None:
            for number in range((requests + WARM_UP) // streams):
                into: Times = defaultdict(list) if number < WARM_UP // streams else times
                await over_websocket(session, url, into)
                await over_sse(session, url, into)

        await asyncio.gather(*(client() for _ in range(streams)))
    return times


def main() -> None:
    """Measure this checkout and the one that ``--other`` names. Print a table with a column for each checkout."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.acknowledged", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--other", type=Path, required=True, help="path of the checkout to compare with")
    parser.add_argument(
        "--requests",
        type=int,
        default=200,
        help="requests per run, over websocket and over server-sent events each (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=2,
        help="number of rounds, each with four runs in the order A B B A (default: %(default)s)",
    )
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--port", type=int, default=18080, help="port of the edge (default: %(default)s)")
    given = parser.parse_args()
    both = {"other": given.other.resolve(), "this": ROOT}
    times: dict[str, Times] = {name: defaultdict(list) for name in both}
    for name in ("other", "this", "this", "other") * given.rounds:
        with railbus_up(both[name], given.port, "--engine", "simulated", "--no-governed"):
            measured = asyncio.run(run(f"http://127.0.0.1:{given.port}", given.requests, given.streams))
        for what, values in measured.items():
            times[name][what] += values
    print("| ms, p50 / p90 | " + " | ".join(both) + " |\n|---|" + "---|" * len(both))
    for what in times["this"]:
        shown = []
        for name in both:
            p50, p90 = statistics.median(times[name][what]), statistics.quantiles(times[name][what], n=10)[8]
            shown.append(f"{p50:.2f} / {p90:.2f}")
        print(f"| {what} | " + " | ".join(shown) + " |")


if __name__ == "__main__":
    main()
