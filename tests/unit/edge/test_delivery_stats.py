"""Test the figures that a receipt records, such as the hash of the ops and the exposure."""

import hashlib

import pytest

from schemas.ids import uuid7
from services.edge.delivery.session import DeliverySession
from services.edge.delivery.stats import DeliveryStats, PositionedOp
from services.edge.log.positions import LoggedEvent, OpId
from services.edge.requests.rate_limit import used_tokens
from services.stream import AS_STARTED, Replace, Restart, Show, Withdraw, encode_op
from tests.support.edge_answers import AnswerWriter

ID = uuid7(1_763_700_000_000, 99)
RECALL = {"rule": "r", "category": "c", "policy_version": "v", "recall_id": "i"}


def sent(op, nth=0, recalled_at=0):
    return PositionedOp(OpId(1, 2, nth), op, encode_op(op), recalled_at)


def receipt(stats):
    about = {"request_id": ID, "tenant": "t", "at": 9_000_000, "source": "edge/1"}
    return stats.receipt(about, connection="c", reason="complete", received_us=1_000_000)


def test_nothing_sent():
    made = receipt(DeliveryStats())
    assert (made.ops, made.last, made.first_text_ms, made.exposure_ms) == (0, None, None, 0)
    assert made.ops_hash == hashlib.sha256().hexdigest()


def test_the_hash_is_over_the_lines():
    stats = DeliveryStats()
    ops = [sent(Show(text="a", tokens=1)), sent(Show(text="\u00e9", tokens=2), 1)]
    for op in ops:
        stats.record_sent(op, 3_500_000)
    made = receipt(stats)
    assert made.ops_hash == hashlib.sha256(b"".join(op.line + b"\n" for op in ops)).hexdigest()
    assert (made.ops, made.last, made.first_text_ms) == (2, "1:2:1", 2_500.0)


def test_exposure_of_a_span_counts_from_its_own_first_showing():
    stats = DeliveryStats()
    for at_us, text in ((1_000, "safe "), (2_000, "sec"), (3_000, "ret"), (4_000, " more")):
        stats.record_sent(sent(Show(text=text, tokens=1)), at_us)
    stats.record_sent(sent(Replace(start=5, end=11, text="#", **RECALL)), 10_000)
    assert receipt(stats).exposure_ms == 8.0
    assert stats.visible == len("safe # more")
    stats.record_sent(sent(Replace(start=7, end=11, text="", **RECALL)), 10_500)  # "more", behind the shorter text
    assert receipt(stats).exposure_ms == 8.0
    assert stats.visible == len("safe # ")


def test_recalled_tokens_are_those_that_were_visible():
    stats = DeliveryStats()
    for text, tokens in (("safe ", 1), ("secr", 2), ("et and more", 3)):
        stats.record_sent(sent(Show(text=text, tokens=tokens)), 1_000)
    stats.record_sent(sent(Replace(start=5, end=11, text="#", **RECALL)), 2_000)
    assert receipt(stats).recalled_tokens == 3  # two, and two elevenths of three
    stats.record_sent(sent(Withdraw(end=15, text="gone", **RECALL), recalled_at=14), 3_000)
    assert receipt(stats).recalled_tokens == 3, "the most of any recall"


def test_a_recall_after_an_earlier_redaction_counts_its_own_text():
    writer = AnswerWriter(ID, checked=True)
    session = DeliverySession(ID, 0, AS_STARTED)
    events = [
        writer.started(), writer.allowed(), writer.chunk("my address, ", tokens=3), writer.recall(3, 10),
        writer.chunk("a secret", tokens=2), writer.chunk(" and on", tokens=2), writer.recall(14, 20, "stop"),
    ]  # fmt: skip
    for place, event in enumerate(events):
        for item in session.feed(LoggedEvent(place, event)):
            session.stats.record_sent(item, event.at)
    made = receipt(session.stats)
    assert made.recalled_tokens == 4  # "secret and on": three quarters of two, and two
    assert made.exposure_ms == 2.0


def test_text_that_was_never_shown_was_not_exposed():
    stats = DeliveryStats()
    stats.record_sent(sent(Show(text="safe ", tokens=1)), 1_000)
    stats.record_sent(sent(Replace(start=5, end=5, text="#", **RECALL)), 10_000)
    assert (receipt(stats).exposure_ms, receipt(stats).recalled_tokens) == (0, 0)
    assert stats.visible == 6


def test_a_withdrawal_counts_from_the_flagged_text():
    stats = DeliveryStats()
    stats.record_sent(sent(Show(text="safe ", tokens=1)), 1_000)
    stats.record_sent(sent(Show(text="secret", tokens=1)), 7_000)
    stats.record_sent(sent(Withdraw(end=11, text="gone", **RECALL), recalled_at=5), 9_000)
    assert receipt(stats).exposure_ms == 2.0
    assert stats.visible == 4


def test_a_restart_does_not_count_as_a_recall():
    stats = DeliveryStats()
    stats.record_sent(sent(Show(text="half", tokens=1)), 1_000)
    stats.record_sent(sent(Restart(attempt=2, trigger="stall")), 9_000)
    assert (receipt(stats).exposure_ms, stats.visible) == (0, 0)


def test_text_from_an_earlier_connection_counts_as_exposed():
    writer = AnswerWriter(ID, checked=True)
    events = [writer.started(), writer.allowed(), writer.chunk("secret", tokens=3)]
    shown_us = events[-1].at
    history = [LoggedEvent(place, event) for place, event in enumerate(events)]
    session = DeliverySession(ID, 0, AS_STARTED)
    caught_up = session.resume(history, OpId(0, 2, 0))
    assert caught_up.ops == ()
    assert session.stats.exposed_tokens == 3
    for item in session.feed(LoggedEvent(3, writer.recall(0, 6))):
        session.stats.record_sent(item, shown_us + 5_000)
    made = receipt(session.stats)
    assert (made.exposed_tokens, made.exposure_ms, made.ops) == (3, 5.0, 1)


def test_a_withdrawal_in_a_shortened_history_takes_back_only_its_own_part():
    writer = AnswerWriter(ID)
    events = [writer.started(), writer.chunk("safe ", tokens=7), writer.chunk("sec", tokens=1), writer.chunk("ret"),
              writer.recall(5, 11, "stop")]  # fmt: skip
    session = DeliverySession(ID, 0, AS_STARTED)
    caught_up = session.resume([LoggedEvent(place, event) for place, event in enumerate(events)], OpId(0, 2, 0))
    assert len(caught_up.ops) == 1
    for item in caught_up.ops:
        session.stats.record_sent(item, 1_000)
    assert receipt(session.stats).recalled_tokens == 1


def test_the_most_that_was_exposed_stays_in_the_receipt():
    writer = AnswerWriter(ID, checked=True)
    events = [writer.started(), writer.allowed(), writer.chunk("ab", tokens=3), writer.cleared(final=False)]
    session = DeliverySession(ID, 0, AS_STARTED)
    for place, event in enumerate([*events, writer.chunk("c", tokens=1)]):
        session.feed(LoggedEvent(place, event))
    assert receipt(session.stats).exposed_tokens == 3


@pytest.mark.parametrize(("end", "used"), [("finish", 7), ("refuse", 0), ("none", 100)])
def test_a_request_pays_for_what_it_used_and_a_refused_one_for_nothing(end, used):
    writer, session = AnswerWriter(ID), DeliverySession(ID, 0, AS_STARTED)
    ends = {"finish": [writer.started(), writer.chunk("a"), writer.chunk("b"), writer.finished()],
            "refuse": [writer.denied()], "none": [writer.started()]}  # fmt: skip
    for place, event in enumerate(ends[end]):
        session.feed(LoggedEvent(place, event))
    assert used_tokens(session, 100) == used
    assert used_tokens(session, 3) == min(used, 3)
