"""Test that the router writes one dead letter for each unreadable record.

If the record is a request whose id can still be read, and the router does not know the id, it also rejects the request.
"""

import base64
import dataclasses

import orjson
import pytest
from msgspec import structs

from schemas.base import AnyEvent
from schemas.errors import MalformedEvent, NewerVersion, UnknownKind, UnreadableEvent
from schemas.side_events import DeadLetter
from schemas.stream import Closed
from schemas.topics import CONTROL, DEAD, LEDGER, RECEIPTS, REQUESTS, REQUESTS_BATCH, STREAMS, Topic
from schemas.wire import decode, encode
from services.bus import Received, UnreadableRecord, partition_for
from services.router.config import RouterConfig
from services.router.core import RouterCore
from tests.unit.router.world import PARTITIONS, RID, T0, World, chunk, request, started

HERE = partition_for(RID, PARTITIONS)


def garbage(
    topic: str = REQUESTS.name, key: bytes | None = RID.encode(), value: bytes | None = b"{", offset: int = 7
) -> UnreadableRecord:
    return UnreadableRecord(
        topic, HERE, offset, 0, key, value, (("kind", b"Request"), ("v", None)), MalformedEvent("Request: cut off")
    )


@pytest.mark.parametrize("topic", [STREAMS, RECEIPTS, CONTROL, LEDGER, REQUESTS_BATCH])
def test_dead_letter_says_where_and_why_and_keeps_the_bytes(topic: Topic) -> None:
    world = World()
    world.unread(garbage(topic=topic.name, key=b"\xff", value=b"\x00\x01"))
    (letter,) = world.written(DeadLetter)
    assert (letter.topic, letter.partition, letter.offset) == (topic.name, HERE, 7)
    assert letter.reason == "Request: cut off"
    assert base64.b64decode(letter.key_b64) == b"\xff"
    assert base64.b64decode(letter.value_b64) == b"\x00\x01"
    assert [name for name, _ in letter.headers] == ["kind", "v"]
    assert not letter.cut
    assert world.written(Closed) == []


@pytest.mark.parametrize(
    ("key", "value", "tenant"),
    [
        (RID.encode(), b"not json", "unknown"),
        (RID.encode(), None, "unknown"),
        (b"elsewhere", orjson.dumps({"request_id": RID, "tenant": "acme"}), "acme"),
        (None, orjson.dumps({"request_id": RID, "tenant": "no such tenant!"}), "unknown"),
    ],
)
def test_request_whose_id_can_be_read_is_rejected_and_accounted_for(
    key: bytes | None, value: bytes | None, tenant: str
) -> None:
    world = World()
    world.unread(garbage(key=key, value=value))
    (event,) = world.written(Closed)
    assert (event.outcome, event.request_id, event.tenant) == ("rejected", RID, tenant)
    assert "cut off" in event.reason
    assert world.account().outcome == "rejected"
    assert world.cancels() == [("expired", None)]  # a worker of a newer version may have it


@pytest.mark.parametrize("value", [b"[]", b"7", b'{"request_id": 7}', b'{"request_id": "x"}'])
def test_request_without_a_readable_id_is_only_kept(value: bytes) -> None:
    world = World()
    world.unread(garbage(key=b"x", value=value))
    assert len(world.written(DeadLetter)) == 1
    assert world.written(Closed) == []


@pytest.mark.parametrize(("error", "closed"), [(NewerVersion("v2"), 1), (UnknownKind("Hologram"), 0)])
def test_request_of_a_newer_version_is_rejected_and_unknown_kinds_kept(error: UnreadableEvent, closed: int) -> None:
    world = World()
    world.unread(dataclasses.replace(garbage(), error=error))
    assert [letter.reason for letter in world.written(DeadLetter)] == [str(error)]
    assert len(world.written(Closed)) == closed


@pytest.mark.parametrize("known_by", [request(), started()])
def test_garbage_cannot_end_a_request_that_somebody_reads(known_by: AnyEvent) -> None:
    world = World().put(known_by)
    world.unread(garbage())
    assert len(world.written(DeadLetter)) == 1
    assert world.endings() == []


def test_folding_again_writes_nothing_twice() -> None:
    world = World()
    world.unread(garbage())
    before = len(world.log)
    fresh = world.join()
    world.write(fresh.read(garbage(), world.now_us, world.now_us))
    assert len(world.log) == before


def test_a_letter_dated_days_ahead_makes_no_router_forget_the_others() -> None:
    world = World()
    world.unread(garbage())
    (letter,) = world.written(DeadLetter)
    world.append(DEAD, structs.replace(letter, offset=letter.offset + 1, at=letter.at + 3 * 86_400_000_000))
    world.unread(garbage())
    assert len(world.written(DeadLetter)) == 2


@pytest.mark.parametrize("meanwhile", [[], [started()]])
def test_rejection_waits_until_the_partition_has_caught_up(meanwhile: list[AnyEvent]) -> None:
    router = RouterCore(RouterConfig(), "router/late", PARTITIONS)
    for number in range(PARTITIONS):
        router.gained(number)
    assert [type(write.event) for write in router.read(garbage(), T0, T0)] == [DeadLetter]
    for event in meanwhile:
        router.read(Received(STREAMS.name, HERE, 0, 0, event, None), T0, T0)
    writes = [write for number in range(PARTITIONS) for write in router.caught_up(number, T0, T0)]
    assert [type(write.event) for write in writes] == ([] if meanwhile else [Closed])


@pytest.mark.parametrize("read_first", [False, True])
@pytest.mark.parametrize("meanwhile", [[], [started()]])
def test_foreign_request_is_rejected_when_its_own_partition_caught_up(
    read_first: bool, meanwhile: list[AnyEvent]
) -> None:
    """An unreadable request in a wrong partition is rejected if the right partition has no events of the request.

    The router decides this when it has caught up with the right partition.
    """
    router = RouterCore(RouterConfig(), "router/late", PARTITIONS)
    for number in range(PARTITIONS):
        router.gained(number)
    foreign = dataclasses.replace(garbage(), partition=1 - HERE)
    writes = router.read(foreign, T0, T0) if read_first else []
    writes += router.caught_up(1 - HERE, T0, T0)
    writes += [] if read_first else router.read(foreign, T0, T0)
    assert [type(write.event) for write in writes] == [DeadLetter]
    for event in meanwhile:
        router.read(Received(STREAMS.name, HERE, 0, 0, event, None), T0, T0)
    assert [type(write.event) for write in router.caught_up(HERE, T0, T0)] == ([] if meanwhile else [Closed])


class TwoRouters:
    """Two routers, each with one of two partitions.

    The router ``owner`` has the partition of the request ``RID``. The router ``finder`` has found an unreadable record
    in the other partition, and has written the dead letter ``letter``.
    """

    def __init__(self, found: UnreadableRecord) -> None:
        self.finder, self.owner = (RouterCore(RouterConfig(), f"router/{name}", PARTITIONS) for name in "fo")
        self.finder.gained(1 - HERE)
        self.finder.caught_up(1 - HERE, T0, T0)
        self.owner.gained(HERE)
        (write,) = self.finder.read(found, T0, T0)
        assert isinstance(write.event, DeadLetter)
        self.letter = write.event

    def take(self, letter: DeadLetter, now_us: int = T0) -> list[AnyEvent]:
        return [write.event for write in self.owner.on_dead_letter(letter, T0 // 1_000, now_us)]


FOREIGN = dataclasses.replace(garbage(value=b'{"tenant": "acme"}'), partition=1 - HERE)


def test_owner_of_the_right_partition_rejects_what_another_router_found() -> None:
    routers = TwoRouters(FOREIGN)
    assert routers.take(routers.letter) == []
    (write,) = routers.owner.caught_up(HERE, T0, T0)
    (event,) = routers.take(structs.replace(routers.letter, offset=8))
    for closed in (write.event, event):
        assert isinstance(closed, Closed)
        assert (closed.request_id, closed.tenant, closed.outcome) == (RID, "acme", "rejected")
        assert closed.reason == "the request could not be read: Request: cut off"
    assert routers.finder.on_dead_letter(routers.letter, T0 // 1_000, T0) == []


def test_owner_of_the_right_partition_rejects_no_request_that_it_knows() -> None:
    routers = TwoRouters(FOREIGN)
    routers.owner.caught_up(HERE, T0, T0)
    routers.owner.read(Received(STREAMS.name, HERE, 0, 0, started(), None), T0, T0)
    assert routers.take(routers.letter) == []


@pytest.mark.parametrize(
    "found",
    [
        dataclasses.replace(FOREIGN, error=UnknownKind("Hologram"), headers=(("kind", b"Hologram"),)),
        dataclasses.replace(FOREIGN, topic=STREAMS.name),
        dataclasses.replace(FOREIGN, key=b"x"),
    ],
)
def test_other_letters_of_another_router_reject_nothing(found: UnreadableRecord) -> None:
    routers = TwoRouters(found)
    routers.owner.caught_up(HERE, T0, T0)
    assert routers.take(routers.letter) == []


def test_old_and_damaged_letters_reject_nothing() -> None:
    routers = TwoRouters(FOREIGN)
    routers.owner.caught_up(HERE, T0, T0)
    assert routers.take(routers.letter, T0 + RouterConfig().window_us + 1) == []
    assert routers.take(structs.replace(routers.letter, offset=8, key_b64="A")) == []
    assert routers.take(structs.replace(routers.letter, offset=9, partition=HERE)) == []


def test_record_near_the_size_limit_still_fits_into_a_dead_letter() -> None:
    world = World()
    world.unread(garbage(topic=STREAMS.name, value=b"\xff" * 1_000_000, key=b"k" * 40_000))
    (letter,) = world.written(DeadLetter)
    value, headers = encode(letter)
    assert decode(value, headers) == letter
    assert letter.cut
    assert "first 600000 of 1000000 bytes kept" in letter.reason
    assert "first 30000 of 40000 key bytes kept" in letter.reason


@pytest.mark.parametrize("header", [("", b""), ("\x01\u20ac", b""), ("", b"v")])
def test_record_with_very_many_headers_still_fits_into_a_dead_letter(header: tuple[str, bytes]) -> None:
    world = World()
    headers = (header,) * 25_000
    world.unread(dataclasses.replace(garbage(value=b"\xff" * 600_000, key=b"k" * 30_000), headers=headers))
    (letter,) = world.written(DeadLetter)
    value, encoded = encode(letter)
    assert decode(value, encoded) == letter
    assert f"(first {len(letter.headers)} of 25000 headers kept)" in letter.reason


def test_event_on_a_topic_that_is_not_its_own_is_not_folded() -> None:
    world = World().put(request(), started())
    world.append(REQUESTS, chunk(0))
    assert not world.routers[0]._partitions[HERE].requests[RID].screen.has_spoken
    (letter,) = world.written(DeadLetter)
    assert letter.reason == "Chunk has no place on railbus.requests"


def test_request_in_a_foreign_partition_is_kept_and_rejected() -> None:
    world = World()
    item = Received(REQUESTS.name, 1 - HERE, 3, 0, request(), None)
    world.write(world.routers[0].read(item, world.now_us, world.now_us))
    (letter,) = world.written(DeadLetter)
    assert "murmur2" in letter.reason
    headers = [(name, base64.b64decode(value)) for name, value in letter.headers]
    assert decode(base64.b64decode(letter.value_b64), headers, base64.b64decode(letter.key_b64)) == item.event
    assert world.endings() == ["rejected"]


def test_worker_that_has_a_request_of_a_foreign_partition_is_stopped() -> None:
    world = World()
    item = Received(REQUESTS.name, 1 - HERE, 3, 0, request(), None)
    world.write(world.routers[0].read(item, world.now_us, world.now_us))
    assert world.cancels() == [("expired", None)]
