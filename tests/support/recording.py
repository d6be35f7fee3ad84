"""Record every byte that clients receive, and compare the recordings with an archive."""

import asyncio
import json
import random
from collections import defaultdict
from dataclasses import dataclass, field

import aiohttp

from schemas.base import Event
from schemas.side_events import Attached, Detached
from schemas.stream import Cutover, Recall
from services.archive.reader import Archive, received
from services.bus import Received
from services.cli.audit.refold import refold_as_sent
from services.cli.client.answer_ops import parse_op
from services.cli.show.timeline import in_log_order
from services.stream import apply, encode_op

SCRIPTS = (
    "n60",
    "n40-mail20",
    "n50-leak30",
    "n40-slow600",
    "n60-die10",
    "n30-mail5-slow500",
    "n60-mail12-mail40",
    "n24-stall6",
)
"""What the simulated engine does. An answer is plain, redacted, withdrawn, late, broken off, or several of these."""

PATIENCE_S = 60.0


@dataclass
class Recording:
    """What one client received for one request.

    Attributes:
        connections: The frames of each websocket connection, in the order in which they came.
        last: Id of the last frame, from which the client can resume; None before the first.
        visible: The text that the client shows.
        over: Whether the client was told that the answer has ended.
    """

    request_id: str = ""
    connections: list[list[bytes]] = field(default_factory=list)
    last: str | None = None
    visible: str = ""
    over: bool = False

    def take(self, frame: bytes) -> None:
        self.connections[-1].append(frame)
        told = json.loads(frame)
        self.last = told["id"]
        for op in told["ops"] if told["op"] == "catch_up" else [told]:
            self.visible = apply(self.visible, parse_op(op))
            self.over = self.over or op["op"] == "close"


async def record(http: aiohttp.ClientSession, url: str, rng: random.Random) -> Recording:
    """Ask for one answer on a websocket, and return what was received. Now and then, drop the connection and resume."""
    recording = Recording()
    body = {"model": f"simulated-{rng.choice(SCRIPTS)}", "messages": [{"role": "user", "content": "tell me"}]}
    while not recording.over:
        drop_after = rng.choice((None, None, rng.randint(1, 30)))
        async with http.ws_connect(f"{url}/v1/stream", max_msg_size=2**24) as socket:
            if not recording.request_id:
                await socket.send_json({"type": "ask", "max_tokens": 100} | body)
            else:
                after = {"after": recording.last} if recording.last else {}
                await socket.send_json({"type": "resume", "request_id": recording.request_id} | after)
            recording.connections.append([])
            async for message in socket:
                told = json.loads(message.data)
                if told.get("type") == "accepted":
                    recording.request_id = told["request_id"]
                elif told.get("type") == "error":
                    if told["error"]["code"] in {"slow_client", "server_stopping", "rate_limit_exceeded"}:
                        break
                    recording.over = True  # how a request failed is told after its last op
                    break
                else:
                    recording.take(message.data.encode())
                    if recording.over or (drop_after is not None and len(recording.connections[-1]) >= drop_after):
                        break
        if not recording.over:
            await asyncio.sleep(rng.uniform(0, 0.3))
    return recording


@dataclass
class Judged:
    """The result of comparing the recordings of clients with an archive.

    The numbers say how much was compared.

    Attributes:
        shortened: Number of connections on which the edge sent a history that left out text already taken back.
        wrong: A sentence for each difference.
    """

    requests: int = 0
    connections: int = 0
    resumes: int = 0
    ops: int = 0
    recalls: int = 0
    cutovers: int = 0
    shortened: int = 0
    wrong: list[str] = field(default_factory=list)


def by_request(archive: Archive) -> dict[str, list[Received]]:
    """Read an archive once. Return all events of each request, by request id."""
    found = defaultdict(list)
    for file in archive.files():
        for stored in archive.records(file):
            record = received(stored)
            if record is not None and isinstance(record.event, Event):
                found[record.event.request_id].append(record)
    return found


def receipts_there(archive: Archive, recordings: list[Recording]) -> bool:
    """Return whether the archive has an ``Attached`` and a ``Detached`` event for each connection of the recordings."""
    events = by_request(archive)
    return all(
        sum(isinstance(r.event, Detached) for r in events[each.request_id])
        >= sum(isinstance(r.event, Attached) for r in events[each.request_id])
        >= len(each.connections)
        for each in recordings
    )


def judge(archive: Archive, recordings: list[Recording]) -> Judged:
    """Rebuild from the archive's events what each client was sent, and compare the result with the recordings."""
    found, events = Judged(), by_request(archive)
    for recording in recordings:
        records = in_log_order(events[recording.request_id])
        ops, checks = refold_as_sent(recording.request_id, records)
        found.requests += 1
        found.connections += len(recording.connections)
        found.resumes += len(recording.connections) - 1
        found.recalls += sum(isinstance(record.event, Recall) for record in records)
        found.cutovers += sum(isinstance(record.event, Cutover) for record in records)
        visible = ""
        for folded in ops:
            visible = apply(visible, folded.op)
        if visible != recording.visible:
            found.wrong.append(f"{recording.request_id}: the last text: {recording.visible!r}, by the fold {visible!r}")
        places = {folded.op_id: folded for folded in ops}
        for number, frames in enumerate(recording.connections):
            if number == 0 and not any(b'"catch_up"' in frame for frame in frames):
                lines = [
                    b'{"request_id":"%b","id":"%b",%b'
                    % (recording.request_id.encode(), each.op_id.encode(), encode_op(each.op)[1:])
                    for each in ops[: len(frames)]
                ]
                found.ops += len(frames)
                if lines != frames:
                    found.wrong.append(f"{recording.request_id}: the first connection: {frames} are not {lines}")
                continue
            for frame in frames:
                told = json.loads(frame)
                if told["op"] != "catch_up":
                    found.ops += 1
                    if encode_op(places[told["id"]].op)[1:] not in frame:
                        found.wrong.append(f"{recording.request_id}: {frame!r} is not {places[told['id']]}")
        for check in checks:
            found.shortened += check.shortened
            if not check.matches:
                found.wrong.append(f"{recording.request_id}: the receipt {check}")
    return found
