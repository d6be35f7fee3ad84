"""Clients that ask for answers, read them, and resume at any edge after a lost connection.

They keep everything that they received, in the order of receipt.
"""

import asyncio
import json
import time
from typing import NamedTuple

import aiohttp

GIVE_UP_S = 180.0
"""A request counts as lost if its client has tried to resume it for this many seconds without receiving an op."""

RETRY_S = 0.3
RESUMABLE = {"server_stopping", "slow_client", "not_ready", "busy", "log_unavailable", "too_many_connections"}


class ReceivedOp(NamedTuple):
    """One message to a client, with one op or several.

    Attributes:
        place: The message's id, with which the client can resume: partition, offset, index.
        ops: The message's ops as tuples, such as ``("show", text)``.
    """

    place: tuple[int, ...]
    ops: list


class Reader:
    """One request as its client sees it.

    Attributes:
        over: How the request ended for the client: ``closed``, an error code, or ``lost`` with the reason.
        waits_for: Faults that began while the request was open, and after which the client has received nothing yet.
    """

    def __init__(self, transport):
        self.transport = transport
        self.request_id = ""
        self.received = []
        self.visible = 0  # characters on the screen
        self.over = None
        self.resumes = 0
        self.waits_for = []

    @property
    def last(self):
        return ":".join(map(str, self.received[-1].place)) if self.received else None

    def take(self, place, ops):
        self.visible = _length_after(self.visible, ops)
        self.received.append(ReceivedOp(tuple(map(int, place.split(":"))), ops))
        self.moved()

    def moved(self):
        if self.waits_for:
            now = time.monotonic()
            for fault in self.waits_for:
                fault.recovered(now)
            self.waits_for = []

    def end(self, how):
        self.over = how
        if not how.startswith("lost"):  # else it never recovered from what it waits for
            self.moved()


class Person:
    """A client that sends one request after another until the campaign stops, each to a random edge."""

    def __init__(self, http, edges, rng, bodies, campaign):
        self._http, self._edges, self._rng, self._bodies, self._campaign = http, edges, rng, bodies, campaign

    async def live(self):
        while not self._campaign.stopping:
            reader = Reader(self._rng.choice(("sse", "websocket")))
            await self._ask_and_read(reader, next(self._bodies))
            if reader.request_id:
                self._campaign.open_readers.discard(reader)
                self._campaign.readers.append(reader)

    async def _ask_and_read(self, reader, body):
        go = self._sse if reader.transport == "sse" else self._websocket
        quiet_since, ops = time.monotonic(), 0
        while reader.over is None:
            if reader.request_id:
                reader.resumes += 1
            try:
                await go(reader, body, self._rng.choice(self._edges()))
                trouble = "the connection ended"
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                trouble = repr(error)
            if reader.over is not None:
                return
            if not reader.request_id:  # nothing was promised yet
                self._campaign.refused += 1
                await asyncio.sleep(RETRY_S)
                return
            now = time.monotonic()
            if len(reader.received) > ops:
                quiet_since, ops = now, len(reader.received)
            elif now - quiet_since > GIVE_UP_S:
                reader.end(f"lost: nothing for {GIVE_UP_S:.0f} s, last {trouble}")
                return
            await asyncio.sleep(RETRY_S)

    def _begun(self, reader, request_id):
        if not reader.request_id:
            reader.request_id = request_id
            self._campaign.open_readers.add(reader)

    # Server-sent events, in OpenAI's format

    async def _sse(self, reader, body, url):
        if reader.request_id:
            headers = {"Last-Event-ID": reader.last} if reader.last else {}
            where = f"{url}/v1/chat/completions/{reader.request_id}?restart=marker"
            call = self._http.get(where, headers=headers)
        else:
            call = self._http.post(f"{url}/v1/chat/completions", json=body | {"stream": True})
        async with call as response:
            if response.status != 200:
                await self._refused(reader, response)
                return
            self._begun(reader, response.headers["X-Request-Id"].removeprefix("chatcmpl-"))
            place = None
            async for line in response.content:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "id":
                    place = value
                elif name == "data" and value == "[DONE]":
                    reader.end("closed")
                elif name == "data":
                    self._chat_chunk(reader, place, json.loads(value))

    async def _refused(self, reader, response):
        said = (await response.text())[:300]
        if not reader.request_id or response.status == 429:
            return
        code = (json.loads(said).get("error") or {}).get("code") if said.startswith("{") else None
        if response.status < 500 or code in ENDS:
            reader.end(code if code in ENDS else f"lost: resumed, {response.status} {said}")

    @staticmethod
    def _chat_chunk(reader, place, chunk):
        if "error" in chunk:
            if chunk["error"]["code"] not in RESUMABLE:
                reader.end(chunk["error"]["code"])
            return
        if not chunk["choices"]:
            return
        delta = chunk["choices"][0]["delta"].get("content") or ""
        ops = chunk.get("railbus")
        # ``content`` has all new text, replaced or not; the field tells what becomes of the text that was there before.
        edits = [] if ops is None else _edits(_flat(ops), reader.visible)
        if any(op[0] == "instead" for op in edits):
            delta = ""
        if edits or delta:
            reader.take(place, edits + ([("show", delta)] if delta else []))

    # A websocket, with ops

    async def _websocket(self, reader, body, url):
        async with self._http.ws_connect(f"{url}/v1/stream", max_msg_size=2**22) as socket:
            if reader.request_id:
                resume = {"type": "resume", "request_id": reader.request_id}
                await socket.send_json(resume | ({"after": reader.last} if reader.last else {}))
            else:
                await socket.send_json({"type": "ask"} | body)
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    return
                said = json.loads(message.data)
                if said.get("type") == "accepted":
                    self._begun(reader, said["request_id"])
                elif said.get("type") == "error":
                    code = said["error"]["code"]
                    if not reader.request_id or code in RESUMABLE or code == "rate_limit_exceeded":
                        return
                    reader.end(code if code in ENDS else f"lost: {said['error']}")
                    return
                elif "op" in said:
                    ops = _flat(said)
                    reader.take(said["id"], ops)
                    if any(name == "close" for name, *_ in ops):
                        reader.end("closed")
                        return


ENDS = {
    "bad_request", "cancelled", "engine_auth", "engine_dead", "engine_overloaded", "engine_timeout",
    "engine_unavailable", "expired", "failed", "internal", "rejected", "safety_block",
}  # fmt: skip
"""Error codes that say how a request was closed."""


def _edits(ops, length):
    """Return the ops of a chat chunk that change text that is already on the screen.

    The other ops only add text, and the chunk's field ``content`` has this text, too. ``length`` is the number of
    characters on the screen before the ops.
    """
    edits = []
    for op in ops:
        if op[0] != "replace" or op[1] < length:
            edits.append(op)
            length = _length_after(length, [op])
    return edits


def _length_after(length, ops):
    for name, *given in ops:
        match name:
            case "show":
                length += len(given[0])
            case "replace":
                length += len(given[2]) - (given[1] - given[0])
            case "instead":
                length = len(given[0])
            case "restart":
                length = 0
    return length


def _flat(said):
    """Return the ops of a message as tuples."""
    if said["op"] == "catch_up":
        return [plain for op in said["ops"] for plain in _flat(op)]
    match said["op"]:
        case "show":
            return [("show", said["text"])]
        case "replace":
            return [("replace", said["start"], said["end"], said["text"])]
        case "withdraw" | "refuse":
            return [("instead", said["text"])]
        case "restart":
            return [("restart",)]
        case "close":
            return [("close", said["outcome"])]
    return []
