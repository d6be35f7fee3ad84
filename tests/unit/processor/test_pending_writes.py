"""Test that the producer gets writes in the order in which they were decided, and without delay if it has room."""

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from schemas.errors import MalformedEvent
from schemas.topics import STREAMS
from services.bus import BusError, EventRejected, NotAcknowledged
from services.processor.core import RecordPosition, Write
from services.processor.pending_writes import PendingWrites
from services.runtime.errors import UnavailableError, UserError
from tests.unit.router.world import closed, request_id


class SmallProducer:
    """A simulated producer that takes ``room`` writes. ``make_room`` lets it take more."""

    def __init__(self, room):
        self.room = room
        self.taken = []
        self.acks = []
        self.ended = None
        self._more = asyncio.Event()

    def make_room(self, count):
        self.room += count
        self._more.set()

    def post_now(self, topic, event, *, traceparent=None):
        if self.ended is not None:
            raise self.ended
        if event.reason == "too large":
            raise MalformedEvent("it is too large")
        return self._take(event) if self.room > 0 else None

    async def post(self, topic, event, *, traceparent=None):
        while (ack := self.post_now(topic, event)) is None:
            self._more.clear()
            await self._more.wait()
        return ack

    def _take(self, event):
        self.room -= 1
        self.taken.append(event)
        self.acks.append(asyncio.get_running_loop().create_future())
        return self.acks[-1]


class Writer:
    """``PendingWrites`` with a ``SmallProducer``, and lists of what its callbacks reported."""

    def __init__(self, room, held=lambda _: True):
        self.producer = SmallProducer(room)
        self.finished, self.written, self.not_written, self.sent = [], [], [], 0
        self.pending = PendingWrites(
            self.producer, group="g", holds=held, on_sent=self._count_sent, on_finished=self.finished.append,
            on_written=self.written.append, on_not_written=self.not_written.append,
        )  # fmt: skip
        self.sending = asyncio.create_task(self.pending.send())

    def append(self, number, reason=""):
        event = structs.replace(closed(rid=request_id(number)), reason=reason)
        self.pending.append(Write(STREAMS, event, done=RecordPosition("t", 0, number)))

    def _count_sent(self):
        self.sent += 1

    @property
    def taken(self):
        return [event.request_id for event in self.producer.taken]

    async def stop(self):
        self.sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.sending


async def let_others_run():
    for _ in range(4):
        await asyncio.sleep(0)


async def test_a_write_is_posted_as_it_is_decided():
    writer = Writer(room=2)
    for number in range(3):
        writer.append(number)
    assert writer.taken == [request_id(0), request_id(1)]
    assert len(writer.pending) == 1
    writer.producer.make_room(1)
    await let_others_run()
    assert (writer.taken, len(writer.pending)) == ([request_id(number) for number in range(3)], 0)
    await writer.stop()


@given(st.lists(st.one_of(st.just("write"), st.just("room"), st.just("run")), max_size=40))
def test_the_order_is_kept_whatever_room_there_is(steps):
    async def play():
        writer, count = Writer(room=0), 0
        for step in steps:
            if step == "write":
                writer.append(count)
                count += 1
            elif step == "room":
                writer.producer.make_room(1)
            else:
                await let_others_run()
            assert writer.taken == [request_id(number) for number in range(len(writer.taken))]
        writer.producer.make_room(count)
        await let_others_run()
        assert writer.taken == [request_id(number) for number in range(count)]
        await writer.stop()

    asyncio.run(play())


async def test_what_is_not_ours_or_too_large_is_finished_and_not_written():
    writer = Writer(room=9, held=lambda rid: rid != request_id(1))
    for number, reason in enumerate(["", "", "too large", ""]):
        writer.append(number, reason)
    assert writer.taken == [request_id(0), request_id(3)]
    assert [position.offset for position in writer.finished] == [1, 2]
    await writer.stop()


async def test_what_waits_and_is_lost_is_finished_and_not_written():
    held = {request_id(0), request_id(1)}
    writer = Writer(room=0, held=lambda rid: rid in held)
    writer.append(0)
    writer.append(1)
    held.clear()
    held.add(request_id(0))
    writer.producer.make_room(2)
    await let_others_run()
    assert writer.taken == [request_id(0)]
    assert [position.offset for position in writer.finished] == [1]
    assert writer.sent == 2  # each made room for a record to be read
    await writer.stop()


@pytest.mark.parametrize(
    ("error", "ends", "lost"),
    [(None, True, False), (EventRejected("no"), True, True), (NotAcknowledged("?"), False, True)],
)
async def test_a_record_is_done_when_its_write_is_or_never_will_be(error, ends, lost):
    """A record is finished when the broker has acknowledged or rejected the event that is written for it.

    If it is unknown whether the event is on the log, the record is not finished. The next owner of the partition then
    reads the record again, and writes the event again.
    """
    writer = Writer(room=1)
    writer.append(0)
    assert (len(writer.written), writer.finished, writer.pending.busy) == (1, [], True)
    [ack] = writer.producer.acks
    if error is None:
        ack.set_result(None)
    else:
        ack.set_exception(error)
    await let_others_run()
    assert [position.offset for position in writer.finished] == [0] * ends
    assert writer.not_written == writer.written * lost
    assert not writer.pending.busy
    await writer.stop()


async def test_after_a_queue_was_sent_a_write_is_posted_as_it_is_decided():
    writer = Writer(room=0)
    writer.append(0)
    assert writer.pending.busy
    writer.producer.make_room(2)
    await let_others_run()
    writer.append(1)
    assert writer.taken == [request_id(0), request_id(1)]
    await writer.stop()


@pytest.mark.parametrize("error", [BusError("stopped"), UserError("no right"), UnavailableError("aborted")])
async def test_a_producer_that_has_ended_ends_the_sender(error):
    writer = Writer(room=9)
    writer.producer.ended = error
    writer.append(0)
    await let_others_run()
    assert writer.sending.exception() is error
