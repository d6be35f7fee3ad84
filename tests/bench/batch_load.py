"""Submit batch requests, keep at most ``--window`` of them open, and check each answer with the product's own fold.

    python -m tests.bench.batch_load --kafka 127.0.0.1:9092 --requests 2000 --window 200

The program writes ``Request`` events of the batch lane, as the batch service does for a job. Their stall deadline is
``--stall-ms``. The class ``batch`` sets the other deadlines. The program reads the stream log, and submits the next
request when one is closed. After SIGTERM, it submits nothing more and waits for the open requests. It prints one JSON
object.

The exit code is 0 if each request was answered completely, or denied because a rail blocked its prompt. Otherwise it
is 1. Some denials are normal: the default policy takes about one in two hundred of these prompts for an attack.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence

import uvloop
from msgspec import structs

from schemas.ids import uuid7
from schemas.requests import Lane, Message, Request, Sampling
from schemas.stream import Closed, Cutover, StreamEvent
from schemas.topics import REQUESTS, REQUESTS_BATCH, STREAMS
from services.bus import BusSettings, Position, Producer, Received, TailReader, UnreadableRecord
from services.runtime.classes.service_classes import ServiceClasses
from services.runtime.clock import now_ms
from services.stream import Governance, Screen

GOVERNED = Governance(input_gate="hold", output_check="on")
FINE = {"completed", "denied"}
PROMPT = "Note {} of the archive: the library moved {} letters before lunch. Summarise this note in one sentence."


class BatchLoad:
    """A load of similar requests in one lane, with a maximum number of open requests.

    Attributes:
        outcomes: Number of closed requests by outcome. ``wrong`` is a completed request without its whole answer.
            ``unjudged`` is a request that was denied because a rail gave no answer.
        closed: Ids of the closed requests. Only an effective ``Closed`` counts.
        attempts: Number of ``Cutover`` events by trigger.
    """

    def __init__(
        self, bus: BusSettings, *, requests: int, window: int, tokens: int, stall_ms: int, lane: Lane = "batch"
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        self.closed: set[str] = set()
        self.attempts: Counter[str] = Counter()
        self.submitted = 0
        self.reasons: Counter[str] = Counter()
        self._bus, self._requests, self._window, self._tokens = bus, requests, window, tokens
        self._lane: Lane = lane
        self._deadlines = structs.replace(ServiceClasses().of(None, lane).deadlines, stall_ms=stall_ms)
        self._again: set[asyncio.Task[None]] = set()
        self._open: dict[str, Screen] = {}
        self._room = asyncio.Event()
        self._stopped = False

    @property
    def open(self) -> int:
        return len(self._open)

    def stop(self) -> None:
        """Make ``run`` submit no further requests."""
        self._stopped = True
        self._room.set()

    async def run(self) -> None:
        """Submit the requests, and return when all submitted requests are closed."""
        producer, tail = Producer(self._bus, role="app", name="batch-load"), TailReader(self._bus, handler=self._read)
        await producer.start()
        reading = asyncio.create_task(tail.run())
        try:
            for partition in range(self._bus.partitions):
                await tail.follow(STREAMS, partition, "end")
            while (self.submitted < self._requests and not self._stopped) or self._open:
                while self.submitted < self._requests and not self._stopped and self.open < self._window:
                    request = self._request(self.submitted)
                    self.submitted += 1
                    self._open[request.request_id] = Screen(request.request_id, GOVERNED)
                    await self._post(producer, request)
                self._room.clear()
                await self._room.wait()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await producer.stop()

    async def _post(self, producer: Producer, request: Request) -> None:
        """Write a request to its topic. If the broker does not take it, write it again with the same id."""
        topic = REQUESTS_BATCH if self._lane == "batch" else REQUESTS

        def acknowledged(ack: asyncio.Future[Position]) -> None:
            if not ack.cancelled() and ack.exception() is not None:
                task = asyncio.get_running_loop().create_task(self._post(producer, request))
                self._again.add(task)
                task.add_done_callback(self._again.discard)

        (await producer.post(topic, request)).add_done_callback(acknowledged)

    def _request(self, number: int) -> Request:
        return Request(
            request_id=uuid7(now_ms(), random.getrandbits(70)), tenant="local",
            at=now_ms() * 1_000, source="batch-load",
            model=f"simulated-n{self._tokens}", lane=self._lane, deadlines=self._deadlines,
            messages=(Message(role="user", content=PROMPT.format(number, number % 97 + 2)),),
            sampling=Sampling(max_tokens=self._tokens),
        )  # fmt: skip

    def _read(self, records: Sequence[Received | UnreadableRecord]) -> None:
        for record in records:
            event = record.event if isinstance(record, Received) else None
            screen = self._open.get(event.request_id) if isinstance(event, StreamEvent) else None
            if screen is None or not isinstance(event, StreamEvent):
                continue
            screen.feed(event)
            if isinstance(event, Cutover):
                self.attempts[event.trigger] += 1
            if isinstance(event, Closed) and screen.closed is event:
                del self._open[event.request_id]
                self.closed.add(event.request_id)
                self.outcomes[self._outcome(event, screen)] += 1
                if event.outcome != "completed":
                    self.reasons[event.reason[:120]] += 1
                self._room.set()

    def _outcome(self, closed: Closed, screen: Screen) -> str:
        verdict = screen.verdict
        if closed.outcome == "denied" and verdict is not None:  # by a rail that answered, or because one did not
            return "denied" if any(rail.result == "blocked" for rail in verdict.rails) else "unjudged"
        if closed.outcome != "completed":
            return closed.outcome
        end = screen.finished
        whole = end is not None and screen.last_seq >= end.last_seq and end.usage.completion_tokens == self._tokens
        return "completed" if whole else "wrong"


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.batch_load", description=__doc__)
    parser.add_argument("--kafka", required=True, metavar="HOST:PORT")
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument(
        "--window", type=int, default=200, help="maximum number of open requests (default: %(default)s)"
    )
    parser.add_argument("--tokens", type=int, default=40, help="tokens of each answer (default: %(default)s)")
    parser.add_argument(
        "--stall-ms", type=int, default=10_000, help="stall deadline of the requests, in ms (default: %(default)s)"
    )
    options = parser.parse_args()
    load = BatchLoad(
        BusSettings(bootstrap=options.kafka), requests=options.requests, window=options.window, tokens=options.tokens,
        stall_ms=options.stall_ms,
    )  # fmt: skip
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, load.stop)
    began_s, own_s = time.monotonic(), time.process_time()
    running = asyncio.create_task(load.run())
    while not (await asyncio.wait({running}, timeout=1))[0]:
        done = len(load.closed)
        print(json.dumps({"submitted": load.submitted, "closed": done, "open": load.open}), file=sys.stderr, flush=True)
    running.result()
    wall_s = time.monotonic() - began_s
    print(json.dumps({
        "submitted": load.submitted, "closed": len(load.closed), "outcomes": dict(load.outcomes),
        "attempts": dict(load.attempts), "reasons": dict(load.reasons), "wall_s": round(wall_s, 2),
        "answers_per_s": round(len(load.closed) / wall_s, 1), "client_cpu_s": round(time.process_time() - own_s, 2),
    }))  # fmt: skip
    return 0 if len(load.closed) == load.submitted and set(load.outcomes) <= FINE else 1


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
