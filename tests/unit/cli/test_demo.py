"""Test, with made-up events, what the demo draws and which faults it reports."""

import dataclasses

import pytest

from schemas.requests import Delivery, Message, Request
from schemas.side_events import Cancel
from schemas.stream import Chunk, Cleared, Closed, Cutover, Finished, Recall, Started, Verdict
from services.bus import Received
from services.cli.demo.annotated_text import AnnotatedText
from services.cli.demo.scenes import SCENES, SceneTrace, find_mismatches
from services.cli.demo.styled_text import StyledSpan, line_width, to_ansi, to_plain_text, to_svg, wrap_spans
from services.cli.demo.timeline import group_rows, render_timeline, timeline_header
from services.stream import Refuse, Replace, Restart, Screen, Show, Withdraw, apply
from tests.support.bus import topic_of

RID = "0199a2b4-1c00-7abc-8def-0123456789ab"
BY_NAME = {scene.name: scene for scene in SCENES}


def about(at=0):
    return {"request_id": RID, "tenant": "local", "at": at * 1_000 + 1_000_000, "source": "t"}


def asked(attempt=1):
    return Request(**about(), messages=(Message(role="user", content="hi"),), attempt=attempt)


def started(attempt=1, at=2):
    return Started(
        **about(at), attempt=attempt, run=f"r{attempt}", model="m", engine="e", queue_ms=1.0, received_at=1,
        delivery=Delivery(), deadlines=asked().deadlines, input_gate="hold", output_check="off",
    )  # fmt: skip


def chunk(seq, text, attempt=1, at=5):
    start = seq * len(text)
    return Chunk(**about(at), attempt=attempt, run=f"r{attempt}", seq=seq, start=start, text=text, tokens=1)


def verdict(decision="allow", refusal="No."):
    told = refusal if decision == "deny" else ""
    return Verdict(**about(3), decision=decision, policy_version="p", refusal=told)


def finished(last_seq, attempt=1):
    return Finished(**about(8), attempt=attempt, run=f"r{attempt}", last_seq=last_seq, finish_reason="stop")


def cutover(trigger, how="cancel", attempt=2):
    return Cutover(**about(6), attempt=attempt, trigger=trigger, how=how, target="vertex", seen_seq=0)


def closed(outcome):
    return Closed(**about(9), outcome=outcome)


def cancel(reason, attempt=1):
    return Cancel(**about(7), attempt=attempt, reason=reason)


def recall(action, start=0, end=3):
    return Recall(
        **about(7), attempt=1, run="r1", recall_id="x", start=start, end=end, action=action, replacement="gone",
        rule="r", category="c", policy_version="p",
    )  # fmt: skip


def told(*events):
    """Return a trace with these events, and with the ops that a correct edge sends because of them."""
    screen, ops = Screen(RID), []
    for event in events:
        if not isinstance(event, Request | Cancel):
            ops += screen.feed(event)
    return SceneTrace(list(events), ops)


GOOD = {
    "ordinary": told(
        asked(), started(), verdict(), chunk(0, "abc "), chunk(1, "def "), finished(1), closed("completed"),
    ),
    "redacted": told(
        asked(), started(), verdict(), chunk(0, "abc "), recall("redact"), finished(0), closed("completed"),
    ),
    "recalled": told(asked(), started(), verdict(), chunk(0, "a" * 30), recall("stop"), closed("recalled")),
    "denied": told(asked(), started(), chunk(0, "abc "), verdict("deny"), closed("denied"), cancel("denied", None)),
    "stall": told(
        asked(), started(), verdict(), chunk(0, "abc "), cutover("stall"), cancel("cutover"), asked(2), started(2),
        chunk(0, "xyz ", 2), finished(0, 2), closed("completed"),
    ),
    "ttft-race": told(
        asked(), started(), verdict(), cutover("ttft", "race"), started(2), chunk(0, "abc "), cancel("lost_race", 2),
        chunk(0, "xyz ", 2), finished(0), closed("completed"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_what_ends_as_it_should_has_no_complaint(name):
    assert find_mismatches(BY_NAME[name], GOOD[name]) == []


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("ordinary", {"outcome": "failed"}, "it was closed as completed, not as failed"),
        ("ordinary", {"cutover": ("ttft", "cancel")}, "its cutovers are [], not [('ttft', 'cancel')]"),
        ("ordinary", {"recall": "stop"}, "its recalls are []"),
        ("ordinary", {"stopped": "denied"}, "no worker was told to stop (denied)"),
        ("stall", {"cutover": None}, "its cutovers are [('stall', 'cancel')], not []"),
    ],
)
def test_what_ends_otherwise_is_said(name, change, complaint):
    assert complaint in find_mismatches(dataclasses.replace(BY_NAME[name], **change), GOOD[name])


def test_a_reader_who_saw_something_else_is_noticed():
    lying = SceneTrace(GOOD["stall"].events, [*GOOD["stall"].ops, Show(text="abc ", tokens=1)])
    assert "the reader saw something else than the log says" in find_mismatches(BY_NAME["stall"], lying)
    assert "the reader saw more than one voice" in find_mismatches(BY_NAME["stall"], lying)


def test_no_answer_at_all_is_no_success():
    assert find_mismatches(BY_NAME["ordinary"], SceneTrace([asked()], []))


def cells(ops, **options):
    paper = AnnotatedText(**options)
    for row, op in enumerate(ops):
        paper.take(op, row)
    return [paper.spans_of_row(row) for row in range(len(ops))]


LIKE = {"rule": "r", "category": "c", "policy_version": "p", "recall_id": "x"}


def test_void_text_stays_where_it_was_shown_and_is_struck_out():
    ops = [Show(text="one two ", tokens=2), Show(text="three", tokens=1), Replace(start=4, end=10, text="[x]", **LIKE)]
    assert cells(ops) == [
        [("one ", "plain"), ("two ", "void")], [("th", "void"), ("ree", "plain")], [("[x]", "new")],
    ]  # fmt: skip
    assert cells(ops, mark_withdrawn=True)[0] == [("one ", "plain"), ("-two- ", "void")]


@pytest.mark.parametrize(
    ("end", "row"),
    [
        (Withdraw(end=3, text="gone", **LIKE), [("gone", "new")]),
        (Refuse(text="No.", policy_version="p"), [("No.", "bad")]),
        (Restart(attempt=2, trigger="stall"), [("the answer starts over", "warn")]),
    ],
)
def test_an_answer_that_is_taken_back(end, row):
    assert cells([Show(text="abc", tokens=1), end]) == [[("abc", "void")], row]


def test_nothing_is_taken_back_where_nothing_was_shown():
    assert cells([Restart(attempt=2, trigger="ttft")]) == [[("nothing was shown: another attempt begins", "warn")]]


def test_a_second_replacement_counts_what_is_visible_then():
    ops = [
        Show(text="abcdef", tokens=1), Replace(start=0, end=2, text="XYZ", **LIKE),
        Replace(start=3, end=5, text="", **LIKE), Show(text="!", tokens=1),
    ]  # fmt: skip
    visible = ""
    for op in ops:
        visible = apply(visible, op)
    pieces = [span for cell in cells(ops) for span in cell if span.style != "void"]
    assert sorted(visible) == sorted("".join(span.text for span in pieces))
    assert visible == "XYZef!"


def record(event, offset=0, timestamp_ms=0):
    return Received(topic_of(event).name, 0, offset, timestamp_ms, event, None)


def test_runs_of_chunks_are_told_together_the_first_one_alone():
    events = [
        started(),
        *(chunk(seq, "abc ", at=5 + seq) for seq in range(4)),
        Cleared(**about(9), attempt=1, run="r1", seq=2, policy_version="p"),
    ]
    rows = group_rows([record(event, offset) for offset, event in enumerate([*events, chunk(4, "abc ", at=10)])])
    assert [len(row.records) for row in rows] == [1, 1, 5]


def test_the_stream_log_keeps_its_order_whatever_the_clocks_say():
    late = [record(started(at=9), 0), record(chunk(0, "abc ", at=5), 1), record(cancel("denied"), 0)]
    kinds = [type(row.records[0].event).__name__ for row in group_rows(late)]
    assert kinds == ["Cancel", "Started", "Chunk"]


def test_a_story_has_the_reader_on_the_left_and_the_log_on_the_right():
    events = [asked(), started(), chunk(0, "abc "), verdict()]
    lines = render_timeline(
        [record(event, offset) for offset, event in enumerate(events)], {(0, 3): [Show(text="abc ", tokens=1)]}, 132
    )
    text = [to_plain_text(line) for line in lines]
    left = to_plain_text(timeline_header(132)).index("what the reader sees")
    assert [line.split()[0] for line in text] == ["0.0", "2.0", "5.0", "3.0"]
    assert "abc" in text[3][left : left + 10]
    assert "allow" in text[3]
    assert "abc" not in text[1]
    assert all(len(line) <= 132 for line in text)


@pytest.mark.parametrize("columns", [1, 3, 7, 40])
def test_wrapping_loses_no_word_and_keeps_to_its_width(columns):
    spans = [StyledSpan("one two  three ", "void"), StyledSpan("fourandmore five ", "plain"), StyledSpan("six")]
    lines = wrap_spans(spans, columns)
    assert all(line_width(line) <= columns for line in lines)
    assert "".join(span.text for line in lines for span in line).replace(" ", "") == "onetwothreefourandmorefivesix"


def test_colours_and_the_picture():
    line = [StyledSpan("a & b", "bad"), StyledSpan(" <c>")]
    assert to_ansi(line) == "\x1b[31ma & b\x1b[0m <c>"
    drawn = to_svg([line, []], 20)
    assert 'class="bad">a &amp; b</text>' in drawn
    assert "&lt;c&gt;" in drawn
    assert drawn.count("<text") == 2
