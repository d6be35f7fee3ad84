"""Test the subclasses that correct Faust's defects, so that no record is lost."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("faust", reason="needs faust-streaming: pip install 'railbus[faust]'")

from faust.types import TP

from services.ledger.faust_flow import BookedConsumer, FaustApp, _rest


async def test_a_queue_is_cleared_when_its_flow_was_suspended_and_never_else():
    app = FaustApp("test", begin_at=lambda topic, number: None, store="memory://", autodiscover=False)
    queue = app.FlowControlQueue(maxsize=10, clear_on_resume=True)
    app.flow_control.resume()
    queue.put_nowait("read after the seek")
    app.flow_control.resume()
    assert queue.qsize() == 1
    app.flow_control.suspend()
    app.flow_control.resume()
    assert queue.qsize() == 0


async def test_a_coroutine_that_was_begun_outside_of_a_task_goes_on_in_one():
    room = asyncio.Event()

    async def put():
        await room.wait()
        return "put"

    putting = put()
    task = asyncio.create_task(_rest(putting, putting.send(None)))
    await asyncio.sleep(0)
    room.set()
    assert await task == "put"


async def test_such_a_coroutine_is_cancelled_like_any():
    ended = []

    async def put():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    putting = put()
    task = asyncio.create_task(_rest(putting, putting.send(None)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["ended"]


async def test_every_partition_is_sought_also_one_of_which_nothing_was_booked():
    accounts, receipts, changelog = TP("accounts", 1), TP("receipts", 1), TP("changelog", 1)
    sought = {}

    class Client:
        def assignment(self):
            return {accounts, receipts, changelog}

        def seek(self, partition, offset):
            sought[partition] = offset

    consumer = BookedConsumer.__new__(BookedConsumer)
    consumer._thread = SimpleNamespace(_ensure_consumer=Client)
    consumer.app = SimpleNamespace(begin_at=lambda topic, _: {"accounts": 7, "receipts": 0}.get(topic))
    assert await consumer._seek_all() == sought == {accounts: 7, receipts: 0}
