"""Check that Railbus falls back to Vertex AI when the upstream model server is late or fails.

    python -m tests.bench.ttft_miss [--times 5]

Requests go through edge, engine ``openai``, router, Vertex worker and Vertex emulator. The upstream is the test model
server, and the name of the model says what the server does (``tests/bench/kit/schedule.py``). The deadlines are 200 ms
to the first token, and 200 ms of silence within an answer. A client of the edge measures the times, in milliseconds
since it began to connect. Only the time of the ``Cutover`` comes from the log, and counts from the receipt of the
request at the edge.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from schemas.stream import Chunk, Cutover
from schemas.topics import STREAMS
from services.bus import BusSettings, Received, TailReader, UnreadableRecord
from services.cli.client.answer_ops import AnswerOp
from services.cli.client.chat_request import ChatRequest
from services.cli.client.edge_client import EdgeAddress, ask_edge
from services.stream import Close, Restart, Show, apply
from tests.bench.kit.servers import Upstream, upstream
from tests.bench.router_report import percentiles
from tests.support.tree import Tree, running_tree

NOTHING = "nothing"

CASES = {
    "healthy": ("fake-A-t30-g20-n20-h0", NOTHING),
    "late, no headers": ("fake-A-t2000-g20-n20", "ttft"),
    "late, headers at once": ("fake-A-t2000-g20-n20-h0", "ttft"),
    "late by 50 ms": ("fake-A-t250-g20-n20-h0", "ttft"),
    "role chunk, then silence": ("fake-A-t2000-g20-n20-role", "ttft"),
    "keep-alive comments": ("fake-A-t2000-g20-n20-ka", "ttft"),
    "empty deltas": ("fake-A-t2000-g20-n20-empty", "ttft"),
    "503": ("fake-A-err503", "hard_error"),
    "silence after 10 chunks": ("fake-A-t30-g20-n20-stall10", "stall"),
    "death after 10 chunks": ("fake-A-t30-g20-n20-close10", "hard_error"),
    "connection refused": ("fake-A-t30", "hard_error"),
}
"""For each case, the name of the upstream's model, and the trigger that the ``Cutover`` must have."""

ENV = {
    "RAILBUS_BREAKER_TRIP": "0",
    "RAILBUS_FALLBACK_RATIO": "1",
    "RAILBUS_FALLBACK_FREE": "1000",
    "RAILBUS_RETRIES": "0",
}


@dataclass
class AnswerTimeline:
    """One answer as a client received it. Times are in milliseconds since the client asked.

    Attributes:
        visible: The text on the screen.
        texts_ms: When each piece of text was shown.
        after_restart_ms: When the first text after the restart was shown.
        last_before_ms: When the last text before the restart was shown.
        restarted: Whether another attempt took over, so that the text began again.
    """

    request_id: str = ""
    visible: str = ""
    texts_ms: list[float] = field(default_factory=list)
    after_restart_ms: float | None = None
    last_before_ms: float | None = None
    restarted: bool = False
    outcome: str = ""


async def ask(url: str, model: str) -> AnswerTimeline:
    """Ask one question, and return the timeline of its answer."""
    asked, began = AnswerTimeline(), time.monotonic()

    def take(answered: AnswerOp) -> None:
        now_ms = (time.monotonic() - began) * 1e3
        asked.request_id = answered.request_id
        asked.visible = apply(asked.visible, answered.op)
        match answered.op:
            case Restart():
                asked.restarted = True
                asked.last_before_ms = asked.texts_ms[-1] if asked.texts_ms else None
            case Show():
                if asked.restarted and asked.after_restart_ms is None:
                    asked.after_restart_ms = now_ms
                asked.texts_ms.append(now_ms)
            case Close():
                asked.outcome = answered.op.outcome

    question = ChatRequest(prompt="hello", model=model, ttft_ms=200, stall_ms=200, total_ms=10_000)
    await ask_edge(question, EdgeAddress(url), take)
    return asked


class Log:
    """The cutovers and chunks that were read from the stream log.

    Attributes:
        cutovers: For each request id, the first ``Cutover`` and its time in milliseconds.
        words: For each request id and attempt, the text of the chunks.
    """

    def __init__(self, tree: Tree) -> None:
        self.cutovers: dict[str, tuple[Cutover, float]] = {}
        self.said: dict[str, Counter[int]] = {}
        self.words: dict[tuple[str, int], str] = {}
        self.partitions = tree.state["partitions"]
        self.reader = TailReader(
            BusSettings(bootstrap=tree.kafka, partitions=self.partitions), handler=self._on_records
        )

    def _on_records(self, records: Sequence[Received | UnreadableRecord]) -> None:
        for record in records:
            event = record.event if isinstance(record, Received) else None
            if isinstance(event, Cutover):
                self.cutovers.setdefault(event.request_id, (event, event.at / 1e3))
            elif isinstance(event, Chunk):
                key = (event.request_id, event.attempt)
                self.words[key] = self.words.get(key, "") + event.text


def row(name: str, asked: list[AnswerTimeline], log: Log) -> dict[str, Any]:
    """Return the figures of one case. They become a row of the output."""
    _, due = CASES[name]
    cuts = [log.cutovers.get(one.request_id) for one in asked]
    triggers = {cut[0].trigger if cut else NOTHING for cut in cuts}
    since_ms = [cut[1] - received_ms(one.request_id) for one, cut in zip(asked, cuts, strict=True) if cut]
    voices = [log.words.get((one.request_id, 2 if one.restarted else 1), "") == one.visible for one in asked]
    return {
        "case": name,
        "trigger": "/".join(sorted(triggers)),
        "as_due": triggers == {due} and all(one.outcome == "completed" for one in asked),
        "cutover_ms": percentiles(since_ms),
        "first_text_ms": percentiles(one.texts_ms[0] for one in asked),
        "silence_ms": percentiles(
            one.after_restart_ms - (one.last_before_ms or 0) for one in asked if one.after_restart_ms is not None
        ),
        "one_voice": all(voices),
    }


def received_ms(request_id: str) -> float:
    """Return when the edge received a request, in milliseconds. A request id is a UUIDv7, which contains this time."""
    return int(request_id.replace("-", "")[:12], 16)


async def cases(tree: Tree, server: Upstream, times: int) -> list[dict[str, Any]]:
    """Send ``times`` requests for each case, one after another. Return one row for each case.

    Before the case "connection refused", stop the upstream.
    """
    log = Log(tree)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(log.reader.run())
        for partition in range(log.partitions):
            await log.reader.follow(STREAMS, partition, "end")
        for model in ("fake-A-t30-g20-n5", "fake-A-err503"):  # the first use of everything
            await ask(tree.url, model)
        found = {}
        for name, (model, _) in CASES.items():
            if name == "connection refused":
                server.stop()
            found[name] = [await ask(tree.url, model) for _ in range(times)]
        await asyncio.sleep(0.5)
        reading.cancel()
    return [row(name, asked, log) for name, asked in found.items()]


def table(rows: list[dict[str, Any]]) -> None:
    """Print the rows as a table, as in RESULTS.md."""
    print("| upstream | falls over by | `Cutover` at ms | first text at ms | longest silence ms | one voice |")
    print("|---|---|---|---|---|---|")
    for it in rows:
        by = it["trigger"] if it["as_due"] else f"NOT AS DUE: {it['trigger']}"
        first, voice = it["first_text_ms"]["p50"], "yes" if it["one_voice"] else "NO"
        times = f"{pair(it['cutover_ms'])} | {first} | {pair(it['silence_ms'])}"
        print(f"| {it['case']} | {by} | {times} | {voice} |")


def pair(values: dict[str, float]) -> str:
    return f"{values['p50']} / {values['max']}" if values else "-"


def main() -> None:
    """Start the upstream and Railbus, run all cases, and stop both.

    The exit code is 0 if each answer was completed, showed the text of exactly one attempt in the end, and had a
    ``Cutover`` with the trigger that ``CASES`` names. Otherwise the exit code is 1. The trigger ``NOTHING`` means that
    the answer must have no ``Cutover``.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5, help="number of requests of each case (default: %(default)s)")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with upstream() as server, tempfile.TemporaryDirectory() as folder:
        arguments = ("--engine", "openai", "--upstream-url", server.url, "--vertex-emulator")
        with running_tree(Path(folder), *arguments, "--no-governed", **ENV) as tree:
            rows = uvloop.run(cases(tree, server, given.times))
    print(json.dumps(rows)) if given.json else table(rows)
    sys.exit(0 if all(it["as_due"] and it["one_voice"] for it in rows) else 1)


if __name__ == "__main__":
    main()
