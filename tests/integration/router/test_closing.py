"""Test that the router's process closes every request on a real broker, even if the process is killed."""

import asyncio
import base64
import random

from aiokafka import AIOKafkaProducer

from schemas.registry import kinds_on
from schemas.requests import Deadlines
from schemas.side_events import Account, Cancel, DeadLetter
from schemas.stream import Closed
from schemas.topics import REQUESTS, TOPICS
from services.bus import partition_for
from services.runtime.classes.service_classes import ServiceClasses
from tests.integration.router.lab import RouterLab
from tests.support.request_events import RequestEvents


async def test_answer_is_closed_accounted_for_and_cancelled_as_it_ends(lab: RouterLab) -> None:
    router = await lab.run(RAILBUS_CLIENT_GRACE_MS="200")
    unhurried = {"ttft_ms": 20_000, "stall_ms": 20_000}  # only what a test waits for may be late
    done, gone = (RequestEvents(deadlines=Deadlines(**unhurried)) for _ in range(2))
    late = RequestEvents(deadlines=Deadlines(total_ms=700, **unhurried))
    for person in (done, late, gone):
        await lab.post(person.request, person.started(), person.chunk(0))
    await lab.post(done.finished(0), gone.attached(), gone.detached())
    await lab.until(lambda: len(lab.written(Account)) == 3)
    assert lab.endings() == {done.id: "completed", late.id: "expired", gone.id: "cancelled"}
    assert {e.request_id: e.reason for e in lab.written(Cancel)} == {late.id: "expired", gone.id: "client_gone"}
    (closed,) = lab.written(Closed, late.id)
    assert closed.at >= late.request.at + 700_000
    assert await router.stop() == 0


async def test_malformed_records_become_dead_letters_across_restarts(lab: RouterLab) -> None:
    router = await lab.run(RAILBUS_ROUTER_INSTANCE="only")
    person = RequestEvents()
    client = AIOKafkaProducer(bootstrap_servers=lab.bus.bootstrap)
    await client.start()
    topics = [topic for topic in TOPICS if topic.name != "railbus.dead"]
    for topic in topics:
        await client.send_and_wait(
            topic.name, b"\x00garbage", b"\xffkey", headers=[("kind", kinds_on(topic)[0].name.encode())]
        )
    partition = partition_for(person.id, RouterLab.partitions)
    await client.send_and_wait(
        REQUESTS.name, b"{}", person.id.encode(), partition, headers=[("kind", b"Request"), ("v", b"1")]
    )
    await client.stop()
    await lab.until(lambda: len(lab.written(DeadLetter)) == len(topics) + 1 and bool(lab.written(Account)))
    garbage = [letter for letter in lab.written(DeadLetter) if base64.b64decode(letter.key_b64) == b"\xffkey"]
    assert sorted(letter.topic for letter in garbage) == sorted(topic.name for topic in topics)
    assert {base64.b64decode(letter.value_b64) for letter in garbage} == {b"\x00garbage"}
    assert [closed.outcome for closed in lab.written(Closed, person.id)] == ["rejected"]

    router.kill()
    await lab.run(RAILBUS_ROUTER_INSTANCE="only")
    other = RequestEvents(deadlines=Deadlines(total_ms=100))
    await lab.post(other.request)
    await lab.until(lambda: len(lab.written(Account)) == 2)
    assert len(lab.written(DeadLetter)) == len(topics) + 1
    assert len(lab.written(Closed)) == 2


async def test_unreadable_requests_in_wrong_partitions_are_closed_by_two_routers(lab: RouterLab) -> None:
    for _ in range(2):
        await lab.run()
    people = [RequestEvents() for _ in range(12)]
    client = AIOKafkaProducer(bootstrap_servers=lab.bus.bootstrap)
    await client.start()
    for number, person in enumerate(people):
        right = partition_for(person.id, RouterLab.partitions)
        wrong = (right + 1 + number % (RouterLab.partitions - 1)) % RouterLab.partitions
        await client.send_and_wait(
            REQUESTS.name, b"{}", person.id.encode(), wrong, headers=[("kind", b"Request"), ("v", b"1")]
        )
    await client.stop()
    await lab.until(lambda: len(lab.written(Account)) == len(people))
    assert lab.endings() == {person.id: "rejected" for person in people}
    assert len(lab.written(Closed)) == len(lab.written(DeadLetter)) == len(people)


async def test_request_that_expired_without_a_router_is_closed_by_the_next(lab: RouterLab) -> None:
    person = RequestEvents(deadlines=Deadlines(total_ms=50))
    await lab.post(person.request)
    await asyncio.sleep(0.1)
    await lab.run()
    await lab.until(lambda: bool(lab.written(Account)))
    assert [closed.outcome for closed in lab.written(Closed)] == ["expired"]


async def test_outage_longer_than_any_deadline_leaves_nothing_open(lab: RouterLab) -> None:
    """After an outage of all routers that was longer than any deadline, the next router closes every request.

    The longest interactive deadline is 1 s here, and the outage takes at least 3.5 s. Only routers write an
    ``Account``, so the newest ``Account`` is from before the outage. A starting router reads the log from a moment
    before this ``Account``, so it sees all requests that came during the outage.
    """
    env = {"RAILBUS_TOTAL_MAX_MS": "1000"}
    before, answered, waits = RequestEvents(), RequestEvents(), RequestEvents()
    router = await lab.run(**env)
    await lab.post(before.request, before.started(), before.chunk(0), before.finished(0))
    await lab.until(lambda: bool(lab.written(Account)))
    assert await router.stop() == 0
    await lab.post(answered.request, answered.started(), answered.chunk(0), answered.finished(0), waits.request)
    await asyncio.sleep(3.5)
    await lab.run(**env)
    await lab.until(lambda: len(lab.written(Account)) == 3)
    assert lab.endings() == {before.id: "completed", answered.id: "completed", waits.id: "expired"}
    assert len(lab.written(Closed)) == 3


async def test_first_router_of_all_closes_what_is_older_than_any_deadline(lab: RouterLab) -> None:
    person = RequestEvents()
    await lab.post(person.request)
    await asyncio.sleep(3.5)
    await lab.run(RAILBUS_TOTAL_MAX_MS="1000")
    await lab.until(lambda: bool(lab.written(Account)))
    assert lab.endings() == {person.id: "expired"}


async def test_router_gets_ready_whatever_the_newest_dead_letter_is(lab: RouterLab) -> None:
    client = AIOKafkaProducer(bootstrap_servers=lab.bus.bootstrap)
    await client.start()
    for headers in ([("kind", b"DeadLetter"), ("v", b"99")], [], [("kind", b"Unheard"), ("v", b"1")]):
        await client.send_and_wait("railbus.dead", b"{}", headers=headers)
        router = await lab.run()
        assert await router.stop() == 0
    await client.stop()


async def test_killed_routers_close_every_request_once(lab: RouterLab) -> None:
    """If the router is killed three times, each request that fails, expires or is cancelled is still closed once."""
    total_ms, kills = 2_500, 3
    instance = {"RAILBUS_ROUTER_INSTANCE": "only", "RAILBUS_CLIENT_GRACE_MS": "300"}
    people: list[RequestEvents] = []
    dice = random.Random(7)

    async def live(person: RequestEvents) -> None:
        await lab.post(person.request)
        await asyncio.sleep(dice.random() / 5)
        await lab.post(person.started())
        for seq in range(dice.randrange(8)):
            await lab.post(person.chunk(seq))
            await asyncio.sleep(dice.random() / 20)
        match dice.randrange(4):
            case 0:
                await lab.post(person.failed())
            case 1:
                await lab.post(person.attached(), person.detached())
            case _:
                pass  # the worker dies without a word

    async def load() -> None:
        async with asyncio.TaskGroup() as lives:
            for _ in range(150):
                people.append(RequestEvents(deadlines=Deadlines(total_ms=total_ms)))
                lives.create_task(live(people[-1]))
                await asyncio.sleep(0.03)

    router = await lab.run(**instance)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load())
        for _ in range(kills):
            await asyncio.sleep(0.7 + dice.random())
            router.kill()
            router = await lab.run(**instance)
    await lab.until(lambda: len({a.request_id for a in lab.written(Account)}) == len(people))
    endings = lab.endings()
    assert endings.keys() == {person.id for person in people}
    assert {a.outcome for a in lab.written(Account)} == {"failed", "cancelled", "expired"}
    assert all(a.outcome == endings[a.request_id] for a in lab.written(Account))


async def test_batch_request_outlives_what_a_router_usually_reads_again(lab: RouterLab) -> None:
    """A new router closes a batch request that is older than the part of the log that new routers usually read.

    The field ``open_since`` of the partition's newest account tells the new router from which time to read.
    """
    env = {"RAILBUS_TOTAL_MAX_MS": "1000"}
    router = await lab.run(**env)
    batch = RequestEvents(lane="batch", deadlines=ServiceClasses().of(None, "batch").deadlines)
    number = partition_for(batch.id, lab.bus.partitions)
    await lab.post(batch.request)
    await asyncio.sleep(8.0)  # twice the longest interactive deadline, the margin of the mark, and a second
    neighbour = _request_of(lab, number)
    await lab.post(neighbour.request, neighbour.started(), neighbour.chunk(0), neighbour.finished(0))
    await lab.until(lambda: bool(lab.written(Account)))
    (account,) = lab.written(Account)
    assert account.open_since is not None
    assert batch.request.at - 60_000_000 < account.open_since < batch.request.at + 1_000_000
    router.kill()
    await lab.run(**env)
    later = _request_of(lab, number)
    await lab.post(later.request, later.started(), later.chunk(0), later.finished(0))
    await lab.post(batch.started(), batch.chunk(0), batch.finished(0))
    await lab.until(lambda: len(lab.written(Account)) == 3)
    assert lab.endings() == dict.fromkeys((batch.id, neighbour.id, later.id), "completed")
    assert len(lab.written(Closed)) == 3
    (last,) = lab.written(Account, batch.id)
    assert (last.lane, last.service_class, last.request_at) == ("batch", "batch", batch.request.at)
    assert last.open_since is not None
    assert last.open_since > account.open_since


def _request_of(lab: RouterLab, number: int) -> RequestEvents:
    while partition_for((made := RequestEvents()).id, lab.bus.partitions) != number:
        pass
    return made
