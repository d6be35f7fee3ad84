"""Test that the judge of the chaos campaigns finds each kind of error, and finds none where there is none."""

from collections import Counter

import pytest

from tests.chaos.cluster.clients import Reader
from tests.chaos.cluster.oracle import DoubleTake, Told, judge

ID = "r"
TEXTS = ("one ", "two ", "mail ")


def events(*more, outcome="completed", verdict="allow"):
    made = [
        ("Verdict", {"decision": verdict}),
        ("Started", {"attempt": 1, "run": "a"}),
        *(("Chunk", {"attempt": 1, "run": "a", "seq": n, "text": text}) for n, text in enumerate(TEXTS)),
        *more,
        ("Finished", {"attempt": 1, "run": "a", "last_seq": 2}),
        ("Closed", {"outcome": outcome}),
    ]  # fmt: skip
    return [(offset, kind, event) for offset, (kind, event) in enumerate(made)]


RECALL = ("Recall", {"attempt": 1, "run": "a", "start": 8, "end": 12, "action": "redact", "replacement": "[gone]"})
STOP = ("Recall", {"attempt": 1, "run": "a", "start": 0, "end": 3, "action": "stop", "replacement": "no"})
OTHER = [
    ("Started", {"attempt": 2, "run": "b"}),
    ("Chunk", {"attempt": 2, "run": "b", "seq": 0, "text": "two "}),
]


SAME = [
    ("Started", {"attempt": 2, "run": "b"}),
    *(("Chunk", {"attempt": 2, "run": "b", "seq": n, "text": text}) for n, text in enumerate(TEXTS)),
]
LATE = ("Cutover", {"attempt": 2, "trigger": "stall"})
STOP_AGAIN = ("Recall", {"attempt": 2, "run": "b", "start": 0, "end": 3, "action": "stop", "replacement": "no"})
THIRD = [
    ("Cutover", {"attempt": 3, "trigger": "stall"}),
    ("Started", {"attempt": 3, "run": "c"}),
    ("Chunk", {"attempt": 3, "run": "c", "seq": 0, "text": "one "}),
]


def saw(*ops, over="closed"):
    reader = Reader("sse")
    reader.request_id = ID
    for offset, op in ops:
        reader.take(f"0:{offset}:0", [op])
    reader.end(over)
    return reader


WHOLE = ((2, ("show", "one ")), (3, ("show", "two ")), (4, ("show", "mail ")))


def kinds(told_events, reader, requests=1):
    told = {ID: Told(0, requests, told_events)}
    return {kind for kind, _, _ in judge(told, [], [reader]).violations}


@pytest.mark.parametrize(
    ("told_events", "reader"),
    [
        (events(), saw(*WHOLE)),
        (events(RECALL), saw(*WHOLE, (5, ("replace", 8, 12, "[gone]")))),
        (events(RECALL), saw(*WHOLE[:2], (5, ("show", "[gone] ")))),
        (events(RECALL), saw(*WHOLE[:2], (5, ("show", "[gone]")), (6, ("show", " ")))),
        (events(STOP, outcome="recalled"), saw(*WHOLE, (5, ("instead", "no")))),
        (events(*OTHER, outcome="failed"), saw(*WHOLE, (5, ("restart",)), (6, ("show", "two ")), over="failed")),
        (
            events(LATE, *SAME, STOP, outcome="failed"),
            saw(*WHOLE, (5, ("restart",)), (9, ("show", "one ")), over="failed"),
        ),
        (
            events(LATE, STOP, *SAME, outcome="failed"),
            saw(*WHOLE, (5, ("restart",)), (8, ("show", "one ")), over="failed"),
        ),
    ],
)
def test_nothing_is_wrong(told_events, reader):
    assert kinds(told_events, reader) == set()


@pytest.mark.parametrize(
    ("told_events", "reader", "kind"),
    [
        (events(), saw(*WHOLE[:2]), "lost"),
        (events()[:-1], saw(*WHOLE), "lost"),
        (events(), saw(*WHOLE, over="lost: 404"), "lost"),
        (events(), saw(*WHOLE, WHOLE[2]), "twice"),
        (events(), saw(WHOLE[0], WHOLE[2]), "mixed"),
        (events(*OTHER), saw(WHOLE[0], (6, ("show", "two ")), (6, ("restart",))), "twice"),
        (events(*OTHER, outcome="failed"), saw(*WHOLE, (6, ("show", "two ")), over="failed"), "mixed"),
        (events(RECALL), saw(*WHOLE, (6, ("close", "completed"))), "withdrawn"),
        (events(STOP, outcome="recalled"), saw(*WHOLE, (6, ("close", "recalled"))), "withdrawn"),
        (
            events(STOP, LATE, *SAME, outcome="failed"),
            saw(*WHOLE, (6, ("restart",)), (8, ("show", "one "))),
            "withdrawn",
        ),
        (
            events(LATE, *SAME, STOP_AGAIN, *THIRD, outcome="failed"),
            saw(*WHOLE, (5, ("restart",)), (9, ("show", "one ")), (11, ("restart",)), (13, ("show", "one "))),
            "withdrawn",
        ),
        (events(verdict="deny"), saw(*WHOLE), "withdrawn"),
    ],
)
def test_what_is_wrong_is_found(told_events, reader, kind):
    assert kind in kinds(told_events, reader)


def test_a_text_that_a_stopped_attempt_also_said_is_counted():
    reader = saw(*WHOLE, (5, ("restart",)), (8, ("show", "one ")), over="failed")
    assert judge({ID: Told(0, 1, events(LATE, STOP, *SAME, outcome="failed"))}, [], [reader]).said_again == {ID}


def test_the_history_of_what_is_wrong_is_told_without_texts():
    told = {ID: Told(0, 1, events(STOP, outcome="recalled"))}
    found = judge(told, [], [saw(*WHOLE, (6, ("close", "recalled")))])
    assert found.histories[ID][2] == "2 Chunk {'attempt': 1, 'run': 'a', 'seq': 0} to 4: 2"
    assert "mail" not in str(found.histories)


def test_a_promise_that_is_on_no_topic_is_lost():
    told = {"another": Told(0, 1, events())}
    assert [kind for kind, _, _ in judge(told, [], [saw(*WHOLE)]).violations] == ["lost"]


def test_an_attempt_that_is_taken_by_two_runs_is_named_with_its_time():
    again = ("Started", {"attempt": 1, "run": "c"})
    told = {ID: Told(0, 1, events(again), Counter({1: 2}), [10, 20])}
    assert judge(told, [], [saw(*WHOLE)]).double_takes == [DoubleTake(ID, 1, 20, 2)]
    same = ("Started", {"attempt": 1, "run": "a"})
    assert judge({ID: Told(0, 1, events(same))}, [], [saw(*WHOLE)]).double_takes == [], "appended twice"


def test_a_dead_letter_is_wrong():
    found = judge({}, [{"topic": "railbus.streams", "reason": "no JSON"}], [])
    assert found.violations == [("dead", "railbus.streams", "no JSON")]
