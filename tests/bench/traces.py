"""Check that the spans of each request equal its account, and measure what tracing costs.

    python -m tests.bench.traces [--requests 1000] [--clients 16] [--tokens 40] [--ratio 1] [--collector]

One ``railbus up`` runs with rails and safety, and clients send requests to its edge over HTTP. The tracer sends its
spans to an OTLP server that decodes them with OpenTelemetry's official messages. With ``--collector``, the spans pass
through OpenTelemetry's collector first. Then the benchmark reads the whole log, independently of the tracer, and
computes each request's account, that is, the parts of its time (``services.stream.latency``). It compares each part
with its span, and the total with the sum of the spans and with the root span. It also compares the root span with the
time that the client measured. The cost of tracing is the tracer's share of the CPU time of all processes.
"""

import argparse
import asyncio
import contextlib
import json
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
import uvloop

from schemas.base import Event
from schemas.topics import RECEIPTS, REQUESTS, STREAMS
from services.bus import BusSettings, Received, TailReader, UnreadableRecord
from services.stream.latency import Latency, LogEvent, latency
from services.tracer.service import wanted
from tests.bench.kit.usage import tree_cpu_s
from tests.support.otlp_receiver import OtlpReceiver, ReceivedSpan, otlp_receiver, running_collector
from tests.support.tree import Tree, running_tree
from tests.support.waiting import comes_true

PATIENCE_S = 60.0
TOPICS = (REQUESTS, STREAMS, RECEIPTS)


@dataclass
class Comparison:
    """The differences between spans and accounts, and the cost of tracing.

    Attributes:
        requests: Number of requests that were sent.
        missing: Ids of the requests without a trace or without an account.
        worst_part_ms: Largest difference between a part of the time in an account and the span of this part.
        worst_sum_ms: Largest difference between the sum of a request's spans and the total of its account.
        worst_root_ms: Largest difference between a request's root span and the total of its account.
        client_ms: For each request, the time that the client measured minus the duration of the root span.
        spans: Number of spans received.
        tracer_cpu_s: CPU time of the tracer, from the first request until its last span was received.
        tree_cpu_s: CPU time of all processes of the tree in the same period.
    """

    requests: int = 0
    missing: list[str] = field(default_factory=list)
    worst_part_ms: float = 0.0
    worst_sum_ms: float = 0.0
    worst_root_ms: float = 0.0
    client_ms: list[float] = field(default_factory=list)
    spans: int = 0
    tracer_cpu_s: float = 0.0
    tree_cpu_s: float = 0.0

    def compare(self, spans: list[ReceivedSpan], account: Latency, wall_ms: float) -> None:
        parts = {span.name: span.ms for span in spans if "railbus.part" in span.attributes}
        (root,) = [span for span in spans if "railbus.request_id" in span.attributes]
        wanted = {name: took_ms for name, took_ms in account.parts if took_ms >= 1e-6}
        gaps = [abs(parts.get(name, 0.0) - wanted.get(name, 0.0)) for name in parts.keys() | wanted.keys()]
        self.worst_part_ms = max(self.worst_part_ms, *gaps)
        self.worst_sum_ms = max(self.worst_sum_ms, abs(sum(parts.values()) - account.total_ms))
        self.worst_root_ms = max(self.worst_root_ms, abs(root.ms - account.total_ms))
        self.client_ms.append(wall_ms - root.ms)
        self.spans += len(spans)


async def measure(
    tree: Tree, receiver: OtlpReceiver, *, requests: int, clients: int, tokens: int, ratio: float = 1.0
) -> Comparison:
    """Send requests to the tree, and compare the spans of each traced request with its account.

    Args:
        tree: The running tree.
        receiver: The OTLP server that gets the spans.
        requests: Number of requests.
        clients: Number of concurrent clients.
        tokens: Number of tokens of each answer.
        ratio: Share of the requests that are traced.
    """
    chosen = wanted(ratio)
    result = Comparison(requests=requests)
    tracer, supervisor = psutil.Process(tree.pid("tracer")), psutil.Process(tree.process.pid)
    tracer_s, tree_s = tree_cpu_s(tracer), tree_cpu_s(supervisor)
    asked = await _ask(tree.url, requests, clients, tokens)
    walls = {request_id: ms for request_id, ms in asked.items() if chosen("Account", request_id.encode())}
    await comes_true(lambda: receiver.by_request().keys() >= walls.keys(), PATIENCE_S, every_s=0.5)
    result.tracer_cpu_s, result.tree_cpu_s = tree_cpu_s(tracer) - tracer_s, tree_cpu_s(supervisor) - tree_s
    accounts, traces = await _accounts(tree), receiver.by_request()
    for request_id, wall_ms in walls.items():
        account = accounts.get(request_id)
        if account is None or request_id not in traces:
            result.missing.append(request_id)
        else:
            result.compare(traces[request_id], account, wall_ms)
    return result


async def _ask(url: str, requests: int, clients: int, tokens: int) -> dict[str, float]:
    """Send the requests. Return, by request id, how many milliseconds the client waited for the last byte."""
    found: dict[str, float] = {}
    numbers = iter(range(requests))

    async def client(http: aiohttp.ClientSession) -> None:
        for number in numbers:
            body = {
                "model": f"simulated-n{tokens}", "stream": True,
                "messages": [{"role": "user", "content": f"What is the number {number}?"}],
            }  # fmt: skip
            begun = time.perf_counter()
            async with http.post(f"{url}/v1/chat/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()
                found[answer.headers["X-Request-Id"].removeprefix("chatcmpl-")] = (time.perf_counter() - begun) * 1_000

    async with aiohttp.ClientSession() as http:
        await asyncio.gather(*(client(http) for _ in range(clients)))
    return found


async def _accounts(tree: Tree) -> dict[str, Latency]:
    """Return the account of every request on the log, by request id."""
    events: dict[str, list[LogEvent]] = defaultdict(list)

    def take(records: list[Received | UnreadableRecord]) -> None:
        for record in records:
            if isinstance(record, Received) and isinstance(record.event, Event):
                events[record.event.request_id].append(LogEvent(record.timestamp_ms, record.event))

    partitions = tree.state["partitions"]
    reader = TailReader(BusSettings(bootstrap=tree.kafka, partitions=partitions), handler=take)
    reading = asyncio.create_task(reader.run())
    try:
        ends = {}
        for topic in TOPICS:
            for number in range(partitions):
                ends[topic, number] = await reader.end_offset(topic, number)
                await reader.follow(topic, number, "beginning")
        await reader.read_through({partition: end for partition, end in ends.items() if end})
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    found = {request_id: latency(request_id, log) for request_id, log in events.items()}
    return {request_id: account for request_id, account in found.items() if account is not None}


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.traces")
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--ratio", type=float, default=1.0, help="share of the requests that are traced (default: 1)")
    parser.add_argument("--collector", action="store_true", help="send the spans through OpenTelemetry's collector")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, otlp_receiver() as receiver, contextlib.ExitStack() as stack:
        folder = Path(name)
        url = stack.enter_context(running_collector(receiver, folder)) if args.collector else receiver.url
        options = ("--engine", "simulated", "--traces", url)
        env = {"RAILBUS_TRACES_RATIO": str(args.ratio)}
        tree = stack.enter_context(running_tree(folder, *options, governed=True, **env))
        size = {"requests": args.requests, "clients": args.clients, "tokens": args.tokens}
        found = await measure(tree, receiver, **size, ratio=args.ratio)
    apart = sorted(found.client_ms)
    print(
        json.dumps(
            {
                "requests": found.requests, "traced": len(found.client_ms), "missing": len(found.missing),
                "spans": found.spans,
                "worst_part_ms": round(found.worst_part_ms, 6), "worst_sum_ms": round(found.worst_sum_ms, 6),
                "worst_root_ms": round(found.worst_root_ms, 6),
                "client_less_root_ms_p50": round(apart[len(apart) // 2], 2),
                "client_less_root_ms_p99": round(apart[len(apart) * 99 // 100], 2),
                "tracer_cpu_s": round(found.tracer_cpu_s, 2), "tree_cpu_s": round(found.tree_cpu_s, 2),
                "tracer_share": round(found.tracer_cpu_s / found.tree_cpu_s, 4),
            },
            indent=2,
        )
    )  # fmt: skip
    return 0 if not found.missing and max(found.worst_sum_ms, found.worst_root_ms) <= 1 else 1


if __name__ == "__main__":
    raise SystemExit(uvloop.run(main()))
