"""Test invariants of the fold with generated histories, which have duplicates, zombies, races and missing ends.

The comments name these invariants:

I1: All visible text is from one run, which is the voice.
I2: Visible text has no duplicates, no disorder, and no gaps other than recalled text.
I3: After the answer was withdrawn, none of its text is visible.
I4: Text of a model is visible only while the gate is open.

``RAILBUS_HISTORIES`` sets the number of histories for the first test (default 10,000). Each other test gets a fifth of
this number.
"""

import os

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from schemas.stream import Chunk, Closed, Cutover, Finished, Recall, Verdict
from services.simulator.judge.truth import truth
from services.stream import Screen, Show, apply, catch_up
from services.stream.ops import Close, Refuse, Replace, Restart, Withdraw
from tests.support.examples import examples
from tests.unit.stream.histories import REQUEST_ID, grow

HISTORIES = int(os.environ.get("RAILBUS_HISTORIES", examples(10_000)))
BYTES = st.binary(min_size=150, max_size=500)
PHASES = (Phase.generate,) if os.environ.get("RAILBUS_NO_SHRINK") else tuple(Phase)
COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None, "phases": PHASES}


def sources(text):
    """For each visible character that a model wrote, return the run's index and the character's offset in the run."""
    return [(ord(char) // 0x10000 - 1, ord(char) % 0x10000) for char in text if ord(char) >= 0x10000]


def fold(log):
    screen = Screen(REQUEST_ID)
    return screen, [screen.feed(event, event.at // 1_000) for event in log]


def recalled_offsets(log, voice):
    covered = set()
    for event in log:
        if isinstance(event, Recall) and (event.attempt, event.run) == (voice.attempt, voice.run):
            covered |= set(range(event.start, event.end))
    return covered


@settings(max_examples=HISTORIES, **COMMON)
@given(BYTES)
def test_every_prefix_keeps_the_invariants(data):
    log = grow(data)
    screen = Screen(REQUEST_ID)
    shown = ""
    withdrawn_for_ever = False
    endings = 0
    for index, event in enumerate(log):
        ended = screen.closed is not None
        ops = screen.feed(event, event.at // 1_000)
        for op in ops:
            shown = apply(shown, op)
        assert shown == screen.visible  # the ops say what the fold says
        from_where = sources(shown)
        runs = {run for run, _ in from_where}
        offsets = [offset for _, offset in from_where]
        assert len(runs) <= 1  # I1
        assert offsets == sorted(set(offsets))  # I2: no duplicate, no disorder
        withdrawn_for_ever = withdrawn_for_ever or screen.stopped is not None
        if withdrawn_for_ever:
            assert not from_where  # I3
        endings += any(isinstance(op, Close) for op in ops)
        assert endings == (screen.closed is not None)  # one end, if any
        if not ended:  # after the end only recalls count
            check_against_oracle(screen, log[: index + 1], shown, from_where)


def check_against_oracle(screen, prefix, shown, from_where):
    expected = truth(prefix)
    if not expected.sure:
        return
    assert screen.closed is expected.closed  # the first whose cause holds at its position on the log
    assert (screen.stopped is not None) == expected.stopped
    if expected.denied:
        first = next(event for event in prefix if isinstance(event, Verdict))
        assert shown == first.refusal
        return
    if from_where:
        assert expected.gate_open  # I4
        assert not expected.stopped
        voice = expected.voice
        assert voice is not None
        assert {f"run{run}" for run, _ in from_where} == {voice.run}  # I1, and which one
        check_span(screen, prefix, expected, [offset for _, offset in from_where])
    if screen.voice is not None and not screen.over and expected.voice is not None:
        assert (screen.voice.attempt, screen.voice.run) == (expected.voice.attempt, expected.voice.run)
    check_exposure(screen, expected)


def check_span(screen, prefix, expected, offsets):
    """Check I2: the visible text is the beginning of the voice's text, without what was recalled."""
    covered = recalled_offsets(prefix, expected.voice)
    assert not covered & set(offsets)
    missing = set(range(max(offsets))) - set(offsets)
    assert missing <= covered


def check_exposure(screen, expected):
    delivery = screen.delivery
    if delivery is None or expected.voice is None or expected.voice.output_check == "off":
        return
    if screen.verdict is not None and screen.verdict.delivery is not None:
        return  # policy may tighten after text was shown, when the gate is off
    if delivery.mode == "gated":
        assert screen.exposed_tokens == 0
    else:
        assert screen.exposed_tokens <= delivery.max_exposure_tokens


@settings(max_examples=max(HISTORIES // 5, 1), **COMMON)
@given(BYTES)
def test_everything_said_is_shown_in_the_end(data):
    """If an answer is allowed, finished and cleared to its end, all of it is shown, except for recalled text."""
    log = [event for event in grow(data) if not isinstance(event, Closed)]
    screen, _ = fold(log)
    end = truth(log)
    final = any(
        event.__class__.__name__ == "Cleared"
        and event.final
        and end.voice is not None
        and (event.attempt, event.run) == (end.voice.attempt, end.voice.run)
        for event in log[end.voice_since :]
    )
    if end.denied or end.stopped or not end.gate_open or not end.finished or not final or end.voice is None:
        return
    said = {
        event.seq: event
        for event in reversed(log[end.voice_since :])
        if isinstance(event, Chunk) and (event.attempt, event.run) == (end.voice.attempt, end.voice.run)
    }
    if screen.finished is None or set(said) < set(range(screen.finished.last_seq + 1)):
        return  # a zombie wrote a chunk of this run before the run became the voice
    length = sum(len(said[seq].text) for seq in range(screen.finished.last_seq + 1))
    covered = recalled_offsets(log, end.voice)
    assert screen.over
    assert {offset for _, offset in sources(screen.visible)} == set(range(length)) - covered


@settings(max_examples=max(HISTORIES // 5, 1), **COMMON)
@given(BYTES)
def test_a_replay_is_the_truth(data):
    """Folding a log again gives the same ops."""
    log = grow(data)
    _, first = fold(log)
    _, second = fold(log)
    assert first == second


@settings(max_examples=max(HISTORIES // 5, 1), **COMMON)
@given(BYTES, st.integers(0, 2**16))
def test_saying_it_twice_changes_nothing(data, where):
    """An event that is repeated later on the log does not change the result of the fold.

    A producer's retry repeats events on the log, and so does a second owner of the partition.
    """
    log = grow(data)
    if not log:
        return
    first = where % len(log)
    before, _ = fold(log[:first])
    if isinstance(log[first], Chunk | Finished) and log[first].attempt not in before.candidates:
        return  # before its attempt was opened, which no router does: only the repetition would count
    screen, _ = fold(log)
    after, _ = fold(log[: first + 1])
    void_cutover = isinstance(log[first], Cutover) and after.attempts == before.attempts
    void_closed = isinstance(log[first], Closed) and log[first] is not screen.closed
    if void_cutover or void_closed:
        return  # its cause may hold at the position of the repetition
    behind = first + 1 + (where // 7) % (len(log) - first)
    repeated, _ = fold([*log[:behind], log[first], *log[behind:]])
    if screen.delivery is not None and screen.delivery.mode == "windowed" and screen.delivery.hold_ms > 0:
        assert repeated.visible.startswith(screen.visible)  # the repetition also says that time has passed on the log
    else:
        assert repeated.visible == screen.visible
    assert (repeated.closed, repeated.verdict) == (screen.closed, screen.verdict)


@settings(max_examples=max(HISTORIES // 5, 1), **COMMON)
@given(BYTES, st.integers(0, 2**16))
def test_catching_up_shows_nothing_that_was_taken_back(data, where):
    """A client that resumes at any op ends with the same text as a client that was never disconnected.

    The client receives no text that was taken back while it was disconnected.
    """
    _, per_event = fold(grow(data))
    ops = [op for group in per_event for op in group]
    cut = where % (len(ops) + 1)
    held = ""
    for op in ops[:cut]:
        held = apply(held, op)
    uncut = held
    for op in ops[cut:]:
        uncut = apply(uncut, op)
    rest = catch_up(len(held), ops[cut:])
    taken_back = [op for op in ops[cut:] if isinstance(op, Replace | Withdraw | Restart | Refuse)]
    if not taken_back:
        assert rest == tuple(ops[cut:])
    caught_up = held
    for op in rest:
        caught_up = apply(caught_up, op)
        fresh = set(sources(op.text)) if isinstance(op, Show) else set()
        assert fresh <= set(sources(uncut))
    assert caught_up == uncut
    tokens = sum(op.tokens for op in rest if isinstance(op, Show))
    assert tokens <= sum(op.tokens for op in ops[cut:] if isinstance(op, Show))
