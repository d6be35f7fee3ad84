"""Test that every receipt agrees with the ops folded from the log.

This holds even if the client came late, resumed, or left early.
"""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from schemas.base import envelope
from schemas.side_events import Attached
from schemas.topics import STREAMS
from services.bus import Received
from services.cli.audit.refold import check_receipts, refold, refold_as_sent
from services.cli.audit.replay import replay_lines, visible_at
from services.edge.delivery.session import DeliverySession
from services.edge.log.positions import LoggedEvent
from services.stream import AS_STARTED, Governance
from tests.unit.stream.histories import REQUEST_ID, grow

PARTITION = 3
HISTORIES = st.binary(min_size=40, max_size=260).map(grow).filter(bool)


def on_log(events):
    return [Received(STREAMS.name, PARTITION, 100 + 7 * n, 1_000 + n, event, None) for n, event in enumerate(events)]


def logged(records):
    return [LoggedEvent(record.offset, record.event, record.timestamp_ms) for record in records]


def sent_to_a_client(records, data):
    """Simulate one connection, and return its two receipts: ``Attached`` and ``Detached``.

    The connection may start late, resume after an op, and end early.
    """
    history = logged(records)
    session = DeliverySession(REQUEST_ID, PARTITION, AS_STARTED)
    steps = [(sent.op_id, place) for place, entry in enumerate(history) for sent in session.feed(entry)]
    session = DeliverySession(REQUEST_ID, PARTITION, AS_STARTED)
    cut = data.draw(st.integers(0, len(steps)), label="ops it has")
    after = steps[cut - 1][0] if cut else None
    split = data.draw(st.integers(steps[cut - 1][1] + 1 if cut else 0, len(history)), label="events when it comes")
    caught_up = session.resume(history[:split], after)
    ops = list(caught_up.ops)
    if caught_up.splittable and ops:  # events arrive while it reads the history, and the rest is shortened
        begun = data.draw(st.integers(0, len(ops)), label="ops of the history that were sent one by one")
        for item in ops[:begun]:
            session.stats.record_sent(item, 0)
        more = data.draw(st.integers(split, len(history)), label="events when the history was shortened")
        fresh = [item for entry in history[split:more] for item in session.feed(entry)]
        ops, split = list(session.shorten([*ops[begun:], *fresh]).ops), more
    stop = data.draw(st.integers(0, 3), label="ops that it does not get, if they are sent one by one")
    live = [item for entry in history[split:] for item in session.feed(entry)]
    for item in [*ops, *live[: max(0, len(live) - stop)]]:
        session.stats.record_sent(item, 0)
    about = envelope(records[0].event, at=0, source="edge/1")
    resumed_from = None if after is None else str(after)
    attached = Attached(**about, connection="c", transport="sse", partition=PARTITION, resumed_from=resumed_from)
    detached = session.stats.receipt(about, connection="c", reason="gone", received_us=0)
    return [Received("railbus.receipts", PARTITION, n, 0, event, None) for n, event in enumerate((attached, detached))]


@settings(deadline=None)
@given(HISTORIES, st.data())
def test_every_receipt_is_explained_by_the_fold(events, data):
    records = on_log(events)
    receipts = sent_to_a_client(records, data)
    ops = refold(REQUEST_ID, records)
    (check,) = check_receipts([*records, *receipts], ops)
    assert check.matches, check


@settings(deadline=None)
@given(HISTORIES, st.data())
def test_a_receipt_of_something_else_is_not(events, data):
    records = on_log(events)
    attached, detached = sent_to_a_client(records, data)
    other = structs.replace(detached.event, ops_hash=detached.event.ops_hash[::-1], ops=detached.event.ops + 1)
    (check,) = check_receipts([*records, attached, detached._replace(event=other)], refold(REQUEST_ID, records))
    assert not check.matches


@settings(deadline=None)
@given(HISTORIES)
def test_a_replay_ends_with_what_the_session_shows(events):
    records = on_log(events)
    session = DeliverySession(REQUEST_ID, PARTITION, AS_STARTED)
    ops = refold(REQUEST_ID, records)
    for entry in logged(records):
        session.feed(entry)
        assert visible_at(ops, entry.log_ms) == session.visible
    assert len(list(replay_lines(ops, 1_000))) == len(ops)


@settings(deadline=None)
@given(HISTORIES)
def test_what_an_edge_insisted_on_is_found_out_by_its_receipt(events):
    records = on_log(events)
    session = DeliverySession(REQUEST_ID, PARTITION, Governance())
    for entry in logged(records):
        for item in session.feed(entry):
            session.stats.record_sent(item, 0)
    about = envelope(events[0], at=0, source="edge/1")
    receipt = session.stats.receipt(about, connection="c", reason="complete", received_us=0)
    _, (check,) = refold_as_sent(REQUEST_ID, [*records, Received("railbus.receipts", PARTITION, 0, 0, receipt, None)])
    assert check.matches
