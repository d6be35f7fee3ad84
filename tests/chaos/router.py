"""Inject faults into the router. The test plays app, edge, rails, generator, safety and the Vertex worker."""

import asyncio
import itertools
import secrets
import signal
import time

from schemas.requests import Deadlines, Request
from schemas.side_events import Account
from schemas.stream import Chunk, Cleared, Closed, Cutover, Failed, Recall, Verdict
from schemas.topics import REQUESTS_VERTEX
from tests.chaos.faults import RoundPhase, run_round
from tests.chaos.results import RoundResult, conclude
from tests.chaos.talk import STEP_S, Talk
from tests.support.waiting import comes_true

ENV = {
    "RAILBUS_INPUT_GATE": "hold",
    "RAILBUS_OUTPUT_CHECK": "off",  # nobody clears what the cloud says here
    "RAILBUS_TOTAL_MAX_MS": "60000",
    "RAILBUS_CLIENT_GRACE_MS": "500",
    "RAILBUS_FALLBACK_RATIO": "1",
    "RAILBUS_FALLBACK_FREE": "10000",
    "RAILBUS_BREAKER_TRIP": "0",
    "RAILBUS_RETRIES": "0",
}
USUAL = Deadlines(verdict_ms=1_000, ttft_ms=1_000, stall_ms=2_000, total_ms=60_000)
PATIENT = Deadlines(verdict_ms=30_000, ttft_ms=30_000, stall_ms=30_000, total_ms=60_000)
"""Deadlines for faults of the broker. While the broker is down, events written in time arrive seconds late."""

DECIDE_S = 3.0
"""Maximum seconds from a router's waking to its decision about a late request. To this, the delay of the test itself is
added. 3 s are for tests that run beside other tests. ``python -m tests.chaos`` uses 0.5 s."""

PAUSES_S = (2, 5, 15)
BURSTS = ("none", "streams", "requests", "receipts")


def fallback(*, on):
    """Return the router's environment variables. If ``on`` is true, requests may fall back to Vertex AI."""
    return ENV | {"RAILBUS_FALLBACK": "vertex" if on else "off"}


class PlannedRequest(Talk):
    """A request with a planned outcome. The test writes the request's events in time for all deadlines.

    Attributes:
        outcome: The outcome with which the router must close the request.
    """

    def __init__(self, lab, rng, outcome="completed", *, long=True, deadlines=USUAL, tail=12):
        super().__init__(lab, deadlines=deadlines)
        self.outcome, self._rng, self._long, self._tail = outcome, rng, long, tail
        self._first_s = 0.0

    async def play(self, stage):
        await self.post(self.ask(), self.attached())
        began = time.monotonic()
        await self._step()
        await self.post(self.started())
        await self.post(self.chunk("The first words. "))
        self._first_s = time.monotonic() - began
        if self.outcome == "denied":
            await comes_true(lambda: stage.phase > 0, 0.4)
            await self.post(self.verdict("deny"))
            return
        await self._step()
        await self.post(self.verdict())
        self._first_s = time.monotonic() - began
        steps = after = 0
        while after < self._tail if self._long else steps < 10:
            await self.post(self.chunk("some more words. "))
            steps += 1
            after += stage.phase == 2
            if steps == 5:
                await self.post(self.recall("redact"))
            if steps % 4 == 0:
                await self.post(self.cleared())
            if self.outcome in {"failed", "recalled"} and steps > 2 and stage.phase and self._rng.random() < 0.05:
                break
            await self._step()
        if self.outcome == "failed":
            await self.post(self.failed())
        elif self.outcome == "recalled":
            await self.post(self.recall("stop"), self.cleared(final=True))
        else:
            await self.post(self.finished(), self.cleared(final=True))

    @property
    def excused(self):
        """Return whether a wrong end of the request is excused because the test or the broker was too slow.

        An end is excused if the first chunk or the verdict took more than 60 % of ``ttft_ms`` or ``verdict_ms``,
        whichever is shorter. It is also excused after a pause of more than 60 % of ``stall_ms``. These times are
        measured twice: when the test writes the events, and when the broker appends them.
        """
        d, appended = self.request.deadlines, self._appended_ms
        gap_ms = max((later - at for at, later in itertools.pairwise(sorted(appended(Chunk)))), default=0)
        asked_ms = min(appended(Request), default=0)
        first_ms = max(min(appended(kind), default=asked_ms) - asked_ms for kind in (Chunk, Verdict))
        return max(self.slow_s * 1_000, gap_ms) > 0.6 * d.stall_ms or max(self._first_s * 1_000, first_ms) > 0.6 * min(
            d.verdict_ms, d.ttft_ms
        )

    def _appended_ms(self, kind):
        """Return when the broker appended each event of this kind. Leave out events of attempts 2 and later."""
        both = zip(self.lab.seen[self.id], self.lab.appended_ms[self.id], strict=True)
        return [at_ms for (_, event), at_ms in both if isinstance(event, kind) and getattr(event, "attempt", 1) == 1]

    @property
    def caused(self):
        """Return the time at which the test read the event that obliges the router to close the request, or None."""
        return self.lab.when(self.id, self._closes)

    def _closes(self, event):
        match event:
            case Cleared():
                return event.final
            case Verdict():
                return event.decision == "deny"
            case Recall():
                return event.action == "stop"
            case _:
                return isinstance(event, Failed)

    async def _step(self):
        await asyncio.sleep(self._rng.uniform(*STEP_S))


async def round_of(lab, fault, rng):
    """Cause one fault while the test writes the events of 32 requests. Return the result.

    Each request has a planned outcome, such as ``denied``.
    """
    lab.watch = _cloud(lab)
    deadlines = PATIENT if fault.startswith("broker") else USUAL
    fates = ("completed", "completed", "denied", "completed", "recalled", "completed", "failed", "completed")
    through = [PlannedRequest(lab, rng, fates[n % 8], deadlines=deadlines) for n in range(24)]
    inside = [PlannedRequest(lab, rng, fates[n % 8], long=False, deadlines=deadlines) for n in range(8)]
    answers = through + inside
    await run_round(lab, fault, rng, through=[a.play for a in through], inside=[a.play for a in inside])
    return conclude(lab, await _judged(lab, fault, answers))


async def paused_round(lab, pause_s, burst, rng, *, on):
    """Pause the only router for ``pause_s`` seconds, and meanwhile write a backlog to the topic ``burst``.

    If ``burst`` is ``none``, write no backlog. If ``on`` is true, the router may fall back to Vertex AI. Return the
    round's result.
    """
    await _only(lab, 1, on=on)
    healthy, late, others = _cast(lab, rng, burst, on=on)
    stage = RoundPhase()
    async with asyncio.TaskGroup() as tasks:
        for answer in (*healthy[:12], *others):
            tasks.create_task(answer.play(stage))
        await asyncio.sleep(1.5)
        stage.phase = 1
        router = lab.members[0]
        router.signal(signal.SIGSTOP)
        end = time.monotonic() + pause_s
        try:
            for person in late:
                await person.play(stage)
            await _flood(lab, burst, others, healthy)
            for answer in healthy[12:]:
                await asyncio.sleep(min(0.1, (pause_s - 1.6) / 12))
                tasks.create_task(answer.play(stage))
            await asyncio.sleep(max(0, end - time.monotonic()))
        finally:
            lab.lag = 0.0
            woke = time.monotonic()
            router.signal(signal.SIGCONT)
        await asyncio.sleep(1.5)
        lag = lab.lag
        stage.phase = 2
    lab.check_members()
    name = f"{pause_s} s, {'fallback' if on else 'no fallback'}, {burst}"
    return conclude(lab, await _judged(lab, name, [*healthy, *others], late, woke, lag, on=on))


async def started_round(lab, burst, rng, *, on):
    """Write a backlog to the topic ``burst`` while no router runs, then start a router. Return the round's result.

    If ``burst`` is ``none``, write no backlog. If ``on`` is true, the router may fall back to Vertex AI.
    """
    await _only(lab, 0, on=on)
    healthy, late, others = _cast(lab, rng, burst, on=on)
    stage = RoundPhase()
    stage.phase = 1
    async with asyncio.TaskGroup() as tasks:
        for answer in (*healthy[:12], *others):
            tasks.create_task(answer.play(stage))
        for person in late:
            await person.play(stage)
        await asyncio.sleep(0.3)
        await _flood(lab, burst, others, healthy)
        for answer in healthy[12:]:
            await asyncio.sleep(0.05)
            tasks.create_task(answer.play(stage))
        await asyncio.sleep(1.5)
        lab.lag = 0.0
        await lab.start()
        woke = time.monotonic()
        await asyncio.sleep(1)
        lag = lab.lag
        stage.phase = 2
    lab.check_members()
    name = f"begins, {'fallback' if on else 'no fallback'}, {burst}"
    return conclude(lab, await _judged(lab, name, [*healthy, *others], late, woke, lag, on=on))


async def _only(lab, count, *, on):
    """Start and stop routers until ``count`` of them run. If ``on`` is true, they have a fallback."""
    lab.watch = _cloud(lab)
    env = fallback(on=on)
    if lab.env != env:
        lab.env = env
        await lab.have(0)
    await lab.have(count)


def _cloud(lab):
    """Return a function that takes a record. If the record is a request to the cloud, the function answers it."""
    tasks, served = set(), set()

    async def answer(request):
        talk, attempt = Talk(lab), request.attempt
        talk.id, talk.request = request.request_id, request
        started = talk.started(attempt, output_check="off")
        await talk.post(started, talk.chunk("From afar.", attempt), talk.finished(attempt))

    def watch(record):
        event = record.event
        if record.topic == REQUESTS_VERTEX.name and (event.request_id, event.attempt) not in served:
            served.add((event.request_id, event.attempt))
            task = asyncio.get_running_loop().create_task(answer(event))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    return watch


# ---- Requests that are late, and what makes one topic long


class Late(Talk):
    """A request that lacks an expected event, or whose client leaves.

    The router must then close the request or start another attempt.

    Attributes:
        kind: ``verdict`` if no verdict comes, ``token`` if no first token comes, ``stall`` if no second chunk comes,
            ``client`` if the client leaves.
    """

    def __init__(self, lab, kind, *, on):
        bounds = {"verdict_ms": 1_000, "ttft_ms": 1_000, "stall_ms": 800}
        total_ms = 60_000 if on or kind != "token" else 1_400
        super().__init__(lab, deadlines=Deadlines(**bounds, total_ms=total_ms))
        self.kind = kind

    async def play(self, stage):
        await self.post(self.ask(), self.attached(), self.started())
        if self.kind != "verdict":
            await self.post(self.verdict())
        if self.kind != "token":
            await self.post(self.chunk("The only words."))
        if self.kind == "client":
            await self.post(self.detached())

    def decided(self, *, on):
        """Return the time at which the test received the router's expected decision; None if it has not received it.

        If ``on`` is true, the router may fall back to Vertex AI. For the kinds ``token`` and ``stall``, it must then
        write a ``Cutover``. In all other cases, it must close the request.
        """
        if on and self.kind in {"token", "stall"}:
            trigger = "ttft" if self.kind == "token" else "stall"
            return self.lab.when(self.id, lambda e: isinstance(e, Cutover) and e.trigger == trigger)
        outcome = {"verdict": "failed", "client": "cancelled", "stall": "failed"}.get(self.kind, "expired")
        return self.lab.when(self.id, lambda e: isinstance(e, Closed) and e.outcome == outcome)


class Busy(PlannedRequest):
    """An answer with long deadlines, to which the test adds a flood of chunks."""

    async def play(self, stage):
        await self.post(self.ask(), self.attached(), self.started(), self.verdict(), self.chunk("Many words: "))
        await comes_true(lambda: stage.phase == 2, 60)
        await self.post(self.finished(), self.cleared(final=True))


class Refused(PlannedRequest):
    """A request with a long prompt, which is denied immediately."""

    def __init__(self, lab, rng):
        super().__init__(lab, rng, "denied")
        self.request = Talk(lab, prompt="What is a log? " * 300).request
        self.id = self.request.request_id


def _cast(lab, rng, burst, *, on):
    """Return three lists of the requests of one round: healthy requests, late requests, and other requests.

    If ``burst`` is ``streams``, the third list has the requests to which ``_flood`` adds chunks. Otherwise, the third
    list is empty.
    """
    healthy = [PlannedRequest(lab, rng, long=n % 3 < 2, tail=6) for n in range(24)]
    late = [Late(lab, kind, on=on) for kind in ("verdict", "token", "stall", "client") for _ in range(3)]
    bounds = Deadlines(verdict_ms=5_000, ttft_ms=5_000, stall_ms=30_000, total_ms=60_000)
    others = [Busy(lab, rng, deadlines=bounds) for _ in range(16)] if burst == "streams" else []
    return healthy, late, others


async def _flood(lab, burst, others, healthy):
    """Write a backlog of records to the topic ``burst``. If ``burst`` is ``none``, write nothing.

    On ``streams``, the backlog has chunks of the requests in ``others``. On ``requests``, it has requests that are
    denied, and these are added to ``others``. On ``receipts``, it has receipts of requests in ``healthy``.
    """
    if burst == "streams":
        for _ in range(312):
            for busy in others:
                await lab.post(busy.chunk("word "))
            await asyncio.sleep(0)
    elif burst == "requests":
        for _ in range(600):
            refused = Refused(lab, healthy[0]._rng)
            others.append(refused)
            await lab.post(refused.request)
            await lab.post(refused.verdict("deny"))
            await asyncio.sleep(0)
    elif burst == "receipts":
        for answer in healthy[:12]:  # gone for a moment only, but the events of their return are far later
            await lab.post(answer.detached())
        for _ in range(125):
            for answer in healthy[:12]:
                name = secrets.token_hex(4)
                await lab.post(answer.attached(name))
                await lab.post(answer.detached("complete", name))
            await asyncio.sleep(0)
        for answer in healthy[:12]:
            await lab.post(answer.attached("again"))


# ---- Judging


async def _judged(lab, name, answers, late=(), woke=0.0, lag=0.0, *, on=True):
    everybody = [*answers, *late]

    def over(talk):
        return lab.events(talk.id, Closed) and lab.events(talk.id, Account)

    await comes_true(lambda: all(map(over, everybody)), lab.session_s + 60)
    found = RoundResult("router", name, answers=len(everybody))
    for talk in everybody:
        closed, accounts = lab.events(talk.id, Closed), lab.events(talk.id, Account)
        found.duplicates += max(0, len(closed) - 1) + max(0, len(accounts) - 1)
        if not closed or not accounts:
            found.unended += 1
            found.wrong.append(f"{talk.id}: {len(closed)} Closed, {len(accounts)} Account within the test's patience")
        elif any(account.outcome != closed[0].outcome for account in accounts):
            found.outcomes += 1
            found.wrong.append(f"{talk.id}: closed {closed[0].outcome}, accounted {accounts[0].outcome}")
    for answer in answers:
        _judge(lab, answer, found)
    if late:
        found.reactions = []  # from waking to what was owed then
    for person in late:
        at = person.decided(on=on)
        after_s = None if at is None else max(0.0, at - woke)
        if after_s is not None:
            found.reactions.append(after_s)
        if after_s is None or after_s > DECIDE_S + lag:
            found.late += 1
            ends = [f"{event.outcome}: {event.reason}" for event in lab.events(person.id, Closed)]
            said = "never rightly decided" if after_s is None else f"decided {after_s:.3f} s after waking"
            found.wrong.append(f"late by {person.kind}: {said} (test's own lag {lag:.3f} s; closed {ends})")
    return found


def _judge(lab, answer, found):
    closed = lab.events(answer.id, Closed)
    cut = lab.screen(answer.id).attempts > 1
    found.duplicates += len(lab.events(answer.id, Cutover)) - cut  # void ones: they cost nothing, and are counted
    if closed and closed[0].outcome == answer.outcome and not cut:
        if answer.caused is not None:
            found.reactions.append(
                max(0.0, lab.when(answer.id, lambda event: isinstance(event, Closed)) - answer.caused)
            )
    elif answer.excused:
        found.excused += 1
    elif cut or (closed and closed[0].outcome in {"failed", "expired", "cancelled"}):
        found.cut += 1
        triggers = [event.trigger for event in lab.events(answer.id, Cutover)]
        ends = [f"{event.outcome}: {event.reason}" for event in closed[:1]]
        found.wrong.append(f"{answer.id}, to be {answer.outcome}, was cut over {triggers} or closed {ends}")
    elif closed:
        found.outcomes += 1
        found.wrong.append(f"{answer.id}: {closed[0].outcome}: {closed[0].reason}, where {answer.outcome} is right")
