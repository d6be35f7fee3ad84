"""What an upstream may do wrong, through all of Railbus: edge, engine ``openai``, router, Vertex worker, emulator.

    python -m tests.bench.ttft_miss [--kit DIR] [--times 5]

The upstream is the load kit's (``upstream.py``), whose model name says what it does; the same cases were put to LiteLLM
1.109.1, whose figures stand beside. Deadlines: 200 ms to the first token, 200 ms of silence within an answer. Times are
a client's of the edge, milliseconds since it asked, connection included; the cutover's is the log's, since receipt.
"""

import argparse
import asyncio
import json
import subprocess
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
from services.bus import BusSettings, Received, TailReader, Unread
from services.cli.answers import Answered
from services.cli.ask_edge import Edge, ask_edge
from services.cli.ports import free_port
from services.cli.question import Question
from services.stream import Close, Restart, Show, apply
from tests.bench.added_ttft import KIT, wait_for
from tests.bench.router_report import percentiles
from tests.e2e.tree import Tree, running

NOTHING = "nothing"

CASES = {
    "healthy": ("fake-A-t30-g20-n20-ho", NOTHING, "-"),
    "late, no headers": ("fake-A-t2000-g20-n20", "ttft", "260-310 with 1 stream, never with 64"),
    "late, headers at once": ("fake-A-t2000-g20-n20-ho", "ttft", "260-310 with 1 stream, never with 64"),
    "late by 50 ms": ("fake-A-t250-g20-n20-ho", "ttft", "not told"),
    "role chunk, then silence": ("fake-A-t2000-g20-n20-hdr", "ttft", "not told"),
    "keep-alive comments": ("fake-A-t2000-g20-n20-ka", "ttft", "never: first token at 2,030"),
    "empty deltas": ("fake-A-t2000-g20-n20-kr", "ttft", "never: first token at 2,030"),
    "503": ("fake-A-err503", "hard_error", "falls over"),
    "silence after 10 chunks": ("fake-A-t30-g20-n20-stall10", "stall", "not told"),
    "death after 10 chunks": ("fake-A-t30-g20-n20-die10", "hard_error", "never"),
    "connection refused": ("fake-A-t30", "hard_error", "falls over"),
}
"""Model of the kit, the trigger that is due, and what LiteLLM did."""

ENV = {"RAILBUS_BREAKER_TRIP": "0", "RAILBUS_FALLBACK_RATIO": "1", "RAILBUS_FALLBACK_FREE": "1000"}


@dataclass
class Asked:
    """One answer as its reader saw it; milliseconds since it was asked."""

    request_id: str = ""
    visible: str = ""
    texts_ms: list[float] = field(default_factory=list)
    after_restart_ms: float | None = None
    last_before_ms: float | None = None
    restarted: bool = False
    outcome: str = ""


async def ask(url: str, model: str) -> Asked:
    """One question."""
    asked, began = Asked(), time.monotonic()

    def take(answered: Answered) -> None:
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

    question = Question(prompt="hello", model=model, ttft_ms=200, stall_ms=200, total_ms=10_000)
    await ask_edge(question, Edge(url), take)
    return asked


class Log:
    """The stream log of the run."""

    def __init__(self, tree: Tree) -> None:
        self.cutovers: dict[str, tuple[Cutover, float]] = {}
        self.said: dict[str, Counter[int]] = {}
        self.words: dict[tuple[str, int], str] = {}
        self.partitions = tree.state["partitions"]
        self.reader = TailReader(
            BusSettings(bootstrap=tree.kafka, partitions=self.partitions), handler=self._on_records
        )

    def _on_records(self, records: Sequence[Received | Unread]) -> None:
        for record in records:
            event = record.event if isinstance(record, Received) else None
            if isinstance(event, Cutover):
                self.cutovers.setdefault(event.request_id, (event, event.at / 1e3))
            elif isinstance(event, Chunk):
                key = (event.request_id, event.attempt)
                self.words[key] = self.words.get(key, "") + event.text


def row(name: str, asked: list[Asked], log: Log) -> dict[str, Any]:
    """What happened in one case."""
    _, due, theirs = CASES[name]
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
        "litellm": theirs,
    }


def received_ms(request_id: str) -> float:
    """A UUIDv7 holds the millisecond of its receipt."""
    return int(request_id.replace("-", "")[:12], 16)


async def cases(tree: Tree, upstream: subprocess.Popen[bytes], times: int) -> list[dict[str, Any]]:
    """All of them, one stream at a time; the upstream ends before the last."""
    log = Log(tree)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(log.reader.run())
        for partition in range(log.partitions):
            await log.reader.follow(STREAMS, partition, "end")
        for model in ("fake-A-t30-g20-n5", "fake-A-err503"):  # the first use of everything
            await ask(tree.url, model)
        found = {}
        for name, (model, _, _) in CASES.items():
            if name == "connection refused":
                upstream.terminate()
                upstream.wait(10)
            found[name] = [await ask(tree.url, model) for _ in range(times)]
        await asyncio.sleep(0.5)
        reading.cancel()
    return [row(name, asked, log) for name, asked in found.items()]


def table(rows: list[dict[str, Any]]) -> None:
    """As in RESULTS.md."""
    print(
        "| upstream | falls over by | `Cutover` at ms | first text at ms | longest silence ms | one voice | LiteLLM |"
    )
    print("|---|---|---|---|---|---|---|")
    for it in rows:
        by = it["trigger"] if it["as_due"] else f"NOT AS DUE: {it['trigger']}"
        first, voice = it["first_text_ms"]["p50"], "yes" if it["one_voice"] else "NO"
        times = f"{pair(it['cutover_ms'])} | {first} | {pair(it['silence_ms'])}"
        print(f"| {it['case']} | {by} | {times} | {voice} | {it['litellm']} |")


def pair(values: dict[str, float]) -> str:
    """Median and worst."""
    return f"{values['p50']} / {values['max']}" if values else "-"


def main() -> None:
    """Starts upstream and Railbus, asks, stops both. Exit code 1 when a case did not fall over as it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kit", type=Path, default=KIT, help="folder of the load kit")
    parser.add_argument("--times", type=int, default=5, help="requests of each case")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not (given.kit / "upstream.py").exists():
        sys.exit(f"no load kit at {given.kit}: give its folder with --kit")
    port = free_port()
    upstream = subprocess.Popen([sys.executable, str(given.kit / "upstream.py"), "--port", str(port)])
    try:
        wait_for(f"http://127.0.0.1:{port}/v1/models", upstream)
        with tempfile.TemporaryDirectory() as folder:
            arguments = ("--engine", "openai", "--upstream-url", f"http://127.0.0.1:{port}", "--vertex-emulator")
            with running(Path(folder), *arguments, "--no-governed", **ENV) as tree:
                rows = uvloop.run(cases(tree, upstream, given.times))
    finally:
        upstream.kill()
        upstream.wait()
    print(json.dumps(rows)) if given.json else table(rows)
    sys.exit(0 if all(it["as_due"] and it["one_voice"] for it in rows) else 1)


if __name__ == "__main__":
    main()
