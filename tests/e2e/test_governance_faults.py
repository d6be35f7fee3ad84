"""Test what readers see if rails, safety or Redis stops or dies, or if the answer is withdrawn while it streams."""

import asyncio
import json
import os
import signal
import time
from collections import defaultdict
from contextlib import asynccontextmanager, contextmanager

import aiohttp

from schemas.stream import Chunk, Cleared, Closed, Recall
from schemas.topics import STREAMS
from services.bus import BusSettings, Received, TailReader
from tests.support.edge_answers import ClientScreen
from tests.support.model_server import ScriptedAnswer
from tests.support.waiting import until

PATIENCE_S = 120
BOUND = 64
"""Maximum number of unchecked tokens that are shown: the default of the policy and of a request."""

STOP_S = float(os.environ.get("RAILBUS_TEST_STOP_S", "3"))
"""How long a process is stopped, in seconds. After the session timeout of its group, 10 s, others would take over."""

PROSE = "Xylophone players rest on quiet afternoons and count the leaves of every tree they pass along the river. "
EMAIL, CARD = "anna.berg@example.org", "4111 1111 1111 1111"
REPLACED = {EMAIL: "[email address]", CARD: "[card number]"}
WITHDRAWN = "This answer was withdrawn by policy."


def prose(tokens):
    return (PROSE * (tokens * 4 // len(PROSE) + 1))[: tokens * 4 - 1] + " "


class Log:
    """The events on the stream log since ``follow`` was called, by request."""

    def __init__(self, kafka):
        self.events = defaultdict(list)
        self._bus = BusSettings(bootstrap=kafka)
        self._tail = TailReader(self._bus, handler=self._take)

    async def follow(self):
        reading = asyncio.create_task(self._tail.run())
        for number in range(STREAMS.partitions(self._bus.partitions)):
            await self._tail.follow(STREAMS, number, "end")
        return reading

    def of(self, request_id, kind):
        return [event for event in self.events[request_id] if isinstance(event, kind)]

    def cleared_tokens(self, request_id, until_us):
        """Return how many tokens of a request safety had cleared by the time ``until_us``, in microseconds."""
        upto = max((event.seq for event in self.of(request_id, Cleared) if event.at <= until_us), default=-1)
        return sum(event.tokens for event in self.of(request_id, Chunk) if event.seq <= upto)

    def at_bound(self, person):
        """Return whether a person is shown so many unchecked tokens that one more chunk could exceed ``BOUND``.

        The calculation uses the size of the largest chunk so far.
        """
        steps = [event.tokens for event in self.of(person.request_id, Chunk)]
        cleared = self.cleared_tokens(person.request_id, time.time_ns() // 1_000)
        return person.tokens + max(steps) > cleared + BOUND

    def _take(self, records):
        for record in records:
            if isinstance(record, Received):
                self.events[record.event.request_id].append(record.event)


class Person(ClientScreen):
    """A websocket client that records what it receives, and when."""

    def __init__(self):
        super().__init__()
        self.request_id = ""
        self.ids = []
        self.raw = ""
        self.tokens = 0
        self.seen = []  # (microseconds, tokens shown so far)
        self.took_back_at = None
        self.outcome = None

    def op(self, op):
        super().op(op)
        if op["op"] == "show":
            self.tokens += op["tokens"]
            self.seen.append((time.time_ns() // 1_000, self.tokens))
        elif op["op"] == "withdraw":
            self.took_back_at = self.took_back_at or time.monotonic()
        elif op["op"] == "close":
            self.outcome = op["outcome"]

    async def ask(self, url, model, **railbus):
        await self._talk(url, {"type": "ask", "prompt": "Go on.", "model": model, "railbus": railbus})

    async def resume(self, url, request_id, after=None):
        await self._talk(url, {"type": "resume", "request_id": request_id, "after": after})

    async def _talk(self, url, opening):
        async with (
            asyncio.timeout(PATIENCE_S),
            aiohttp.ClientSession() as session,
            session.ws_connect(f"{url}/v1/stream") as socket,
        ):
            await socket.send_json(opening)
            async for message in socket:
                frame = json.loads(message.data)
                assert frame.get("type") != "error", frame
                self.raw += message.data
                self.request_id = frame["request_id"]
                if "op" in frame:
                    self.ids.append(frame["id"])
                    self.op(frame)
                if self.outcome is not None:
                    return


@asynccontextmanager
async def reading(tree):
    log = Log(tree.kafka)
    task = await log.follow()
    try:
        yield log
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextmanager
def stopped(tree, service):
    """Pause a service's process with SIGSTOP while the ``with`` block runs."""
    pid = tree.pid(service)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_from_the_withdrawal_on_nobody_is_sent_what_was_withdrawn(governed):
    tree, speaker = governed
    url = tree.url
    # It begins after the verdict, is read for seconds before the withdrawal, and would go on for long after it.
    text = prose(120) + "How to build a pipe bomb: " + prose(1_400)
    saying = speaker.sayings["stop"] = ScriptedAnswer(text, 60, begin_s=2.0)
    person, latecomers = Person(), []
    asking = asyncio.create_task(person.ask(url, "stop"))
    await until(lambda: person.tokens, "the answer begins")
    joining = []

    def one_more():
        late = Person()
        latecomers.append((time.monotonic(), late))
        joining.append(asyncio.create_task(late.resume(url, person.request_id)))

    while person.took_back_at is None and not asking.done():
        one_more()
        await asyncio.sleep(0.02)
    for _ in range(10):
        one_more()
        await asyncio.sleep(0.005)
    await asyncio.gather(asking, *joining)
    assert (person.visible, person.outcome) == (WITHDRAWN, "recalled")
    await until(lambda: saying.broken, "the engine is stopped")
    assert saying.said < len(saying.steps)

    after = [late for joined_at, late in latecomers if joined_at > person.took_back_at]
    assert 10 <= len(after) < len(latecomers)
    for late in after:
        assert "Xylophone" not in late.raw
    assert {late.visible for _, late in latecomers} == {WITHDRAWN}

    shown = [op_id for op_id in person.ids if op_id != person.ids[-1]]
    assert len(shown) > 10
    again = [Person() for _ in shown]
    await asyncio.gather(*(one.resume(url, person.request_id, op_id) for one, op_id in zip(again, shown, strict=True)))
    paths = [f"/v1/requests/{person.request_id}/events"]
    paths += [f"/v1/chat/completions/{person.request_id}?stream={flag}" for flag in ("true", "false")]
    async with aiohttp.ClientSession() as session:
        for path in paths:
            for op_id in [None, *shown[:: len(shown) // 5]]:
                headers = {} if op_id is None else {"Last-Event-ID": op_id}
                async with session.get(url + path, headers=headers) as response:
                    assert response.status == 200
                    assert "Xylophone" not in await response.text()
    for one in again:
        assert "Xylophone" not in one.raw
        assert one.outcome == "recalled"


async def test_while_safety_is_stopped_nobody_is_shown_more_than_the_bound(governed):
    tree, speaker = governed
    url = tree.url
    people, gated, doomed = [Person() for _ in range(8)], Person(), Person()
    text = prose(240) + f"Write to {EMAIL} or not. " + prose(240)
    speaker.sayings["long"] = ScriptedAnswer(text, 40)  # for 12 s: it is far from its end when safety stops
    speaker.sayings["endless"] = ScriptedAnswer(prose(2_000))
    async with reading(tree) as log:
        asking = [asyncio.create_task(one.ask(url, "long")) for one in people]
        asking.append(asyncio.create_task(gated.ask(url, "long", delivery="gated")))
        everybody = [*people, gated, doomed]
        await until(lambda: all(log.of(one.request_id, Cleared) for one in [*people, gated]), "safety speaks")
        with stopped(tree, "safety"):
            asking.append(asyncio.create_task(doomed.ask(url, "endless", deadlines={"total_ms": 2_000})))
            await asyncio.sleep(STOP_S)
            await until(lambda: doomed.outcome, "the router closes what came to its deadline")
            await until(lambda: all(log.at_bound(one) for one in people), "everybody is shown all that may be shown")
            still = [one.tokens for one in people]
            assert not any(one.outcome for one in [*people, gated]), "nothing is completed unchecked"
            assert doomed.outcome == "expired", "it ends in time, and not as if it had passed"
            assert doomed.tokens <= BOUND
            await asyncio.sleep(0.3)
            assert still == [one.tokens for one in people], "everybody waits"
            now_us = time.time_ns() // 1_000
            for one in people:
                assert 0 < one.tokens <= log.cleared_tokens(one.request_id, now_us) + BOUND
            assert gated.tokens <= log.cleared_tokens(gated.request_id, now_us)
        await asyncio.gather(*asking)
        for one in [*people, gated]:
            assert one.outcome == "completed"
            assert one.visible == text.replace(EMAIL, REPLACED[EMAIL])
        await until(lambda: all(log.of(one.request_id, Closed) for one in everybody), "all of it is read")
        for one in everybody:
            for at_us, tokens in one.seen:
                assert tokens <= log.cleared_tokens(one.request_id, at_us) + BOUND
        assert EMAIL not in gated.raw


async def test_a_killed_safety_checks_everything_it_missed(governed):
    tree, speaker = governed
    url = tree.url
    text = "".join(prose(40 + 7 * number) + f" {found} and " for number, found in enumerate([EMAIL, CARD] * 3))
    people = [Person() for _ in range(8)]
    for number in range(len(people)):  # other chunks: safety dies in the middle of some findings
        speaker.sayings[f"cut{number}"] = ScriptedAnswer(text, 75, 1 + number)
    async with reading(tree) as log:
        asking = [asyncio.create_task(one.ask(url, f"cut{number}")) for number, one in enumerate(people)]
        await until(lambda: all(log.of(one.request_id, Cleared) for one in people), "safety speaks")
        await asyncio.to_thread(tree.kill, "safety")
        await asyncio.gather(*asking)
        clean = text
        for found, replacement in REPLACED.items():
            clean = clean.replace(found, replacement)
        for one in people:
            assert (one.outcome, one.visible) == ("completed", clean)
            chunks = log.of(one.request_id, Chunk)
            final = [event for event in log.of(one.request_id, Cleared) if event.final]
            assert [event.seq for event in final] == [chunks[-1].seq]
            spans = {(event.start, event.end) for event in log.of(one.request_id, Recall)}
            assert sorted(text[start:end] for start, end in spans) == sorted([EMAIL, CARD] * 3)
            for at_us, tokens in one.seen:
                assert tokens <= log.cleared_tokens(one.request_id, at_us) + BOUND


async def test_a_killed_redis_changes_nothing(governed):
    tree, speaker = governed
    text = prose(30) + f"{CARD} is mine. " + prose(30)
    speaker.sayings["card"] = ScriptedAnswer(text, 400)
    before, during = Person(), Person()
    await before.ask(tree.url, "card")
    os.kill(tree.pid("redis"), signal.SIGKILL)
    await during.ask(tree.url, "card")
    for one in (before, during):
        assert (one.outcome, one.visible) == ("completed", text.replace(CARD, REPLACED[CARD]))


async def test_without_a_verdict_nothing_is_shown(governed):
    tree, speaker = governed
    speaker.sayings["judged"] = ScriptedAnswer(prose(20), 400)
    held, freed = Person(), Person()
    with stopped(tree, "rails"):
        await held.ask(tree.url, "judged", deadlines={"verdict_ms": 500, "total_ms": 3_000})
        assert held.outcome not in {None, "completed"}
        assert "Xylophone" not in held.raw
    await freed.ask(tree.url, "judged")
    assert (freed.outcome, freed.visible) == ("completed", prose(20))
