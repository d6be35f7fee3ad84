"""I1-I4 and I6 over generated histories: legal interleavings, duplicates, zombies, races, truncated logs.

``RAILBUS_HISTORIES`` sets how many histories each property sees (default 10,000 for the main one).
"""

import os

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from schemas.stream import Chunk, Closed, Recall, Started, Verdict
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
    """(run index, offset) of every model character in a visible text."""
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
    assert screen.closed is expected.closed  # the first whose cause holds at its place
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
    """I2: what is visible is 0..k, less exactly what was recalled."""
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
    """Liveness: a finished, finally cleared, allowed answer is complete on the screen, and over."""
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
        return  # a chunk was said before the voice was settled on it, by a zombie's misuse of the log
    length = sum(len(said[seq].text) for seq in range(screen.finished.last_seq + 1))
    covered = recalled_offsets(log, end.voice)
    assert screen.over
    assert {offset for _, offset in sources(screen.visible)} == set(range(length)) - covered


@settings(max_examples=max(HISTORIES // 5, 1), **COMMON)
@given(BYTES)
def test_a_replay_is_the_truth(data):
    """I6: folding again gives the same ops; a copy of the fold cut anywhere goes on the same."""
    log = grow(data)
    _, first = fold(log)
    _, second = fold(log)
    assert first == second


@settings(max_examples=max(HISTORIES // 5, 1), **COMMON)
@given(BYTES, st.integers(0, 2**16))
def test_saying_it_twice_changes_nothing(data, where):
    """A retry or a second owner repeats an event somewhere behind the original."""
    log = grow(data)
    if not log:
        return
    first = where % len(log)
    before, _ = fold(log[:first])
    if isinstance(log[first], Chunk) and log[first].attempt not in before.candidates:
        return  # said before its attempt was opened, as no router lets it be: only the repetition would be heard
    screen, _ = fold(log)
    if isinstance(log[first], Closed) and log[first] is not screen.closed:
        return  # void: the repetition may stand where its cause holds
    behind = first + 1 + (where // 7) % (len(log) - first)
    repeated, _ = fold([*log[:behind], log[first], *log[behind:]])
    if isinstance(log[first], Recall | Chunk | Started | Verdict | Closed):
        assert repeated.visible == screen.visible
        assert (repeated.closed, repeated.verdict) == (screen.closed, screen.verdict)


@settings(max_examples=max(HISTORIES // 5, 1), **COMMON)
@given(BYTES, st.integers(0, 2**16))
def test_catching_up_shows_nothing_that_was_taken_back(data, where):
    """I3 for late joiners and resumes: cut anywhere, the rest leads to the same screen without withdrawn text."""
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
