"""What is kept of Faust: its queues lose nothing, and a record that is left out is noticed."""

from dataclasses import dataclass

import pytest

pytest.importorskip("faust", reason="needs faust-streaming: pip install 'railbus[faust]'")

from services.ledger.faust_flow import FaustApp, OffsetGuard, RecordsLost


async def test_a_queue_is_cleared_when_its_flow_was_suspended_and_never_else():
    app = FaustApp("test", store="memory://", autodiscover=False)
    queue = app.FlowControlQueue(maxsize=10, clear_on_resume=True)
    app.flow_control.resume()
    queue.put_nowait("read after the seek")
    app.flow_control.resume()
    assert queue.qsize() == 1
    app.flow_control.suspend()
    app.flow_control.resume()
    assert queue.qsize() == 0


@dataclass
class Message:
    offset: int
    topic: str = "t"
    partition: int = 0


def test_a_record_that_is_left_out_is_noticed_and_a_repetition_is_none():
    guard = OffsetGuard()
    for offset in (5, 6, 7, 5, 6, 7, 8):
        guard.check(Message(offset))
    guard.check(Message(0, partition=1))
    with pytest.raises(RecordsLost, match="offsets 9 to 10 of t-0"):
        guard.check(Message(11))
    guard.forget()
    guard.check(Message(20))
