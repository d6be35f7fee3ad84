"""Tests of the six rules of the fold (see ``services/stream/screen.py``). Each test folds a short log."""

import pytest

from schemas.requests import Deadlines, Delivery
from schemas.stream import Chunk, Cleared, Closed, Cutover, Failed, Finished, Recall, Started, Verdict
from services.stream import Begin, Close, Finish, Refuse, Replace, Restart, Screen, Show, Withdraw, catch_up
from services.stream.order import MAX_WAITING, ChunkOrder
from tests.unit.stream.histories import REQUEST_ID

COMMON = {"request_id": REQUEST_ID, "tenant": "t", "at": 1_000, "source": "test/1"}


def allow(**more):
    return Verdict(**COMMON, decision="allow", policy_version="v", **more)


def started(attempt=1, run="a", mode="optimistic", check="on", gate="hold", exposure=100, **delivery):
    return Started(
        **COMMON, attempt=attempt, run=run, model=f"model-{run}", engine="e", queue_ms=0, received_at=0,
        delivery=Delivery(mode=mode, max_exposure_tokens=exposure, **delivery), deadlines=Deadlines(),
        input_gate=gate, output_check=check,
    )  # fmt: skip


def chunk(seq, start, text, attempt=1, run="a", tokens=1, at=1_000):
    return Chunk(**{**COMMON, "at": at}, attempt=attempt, run=run, seq=seq, start=start, text=text, tokens=tokens)


def finished(last_seq, attempt=1, run="a"):
    return Finished(**COMMON, attempt=attempt, run=run, last_seq=last_seq, finish_reason="stop")


def cleared(seq, final=False, attempt=1, run="a"):
    return Cleared(**COMMON, attempt=attempt, run=run, seq=seq, final=final, policy_version="v")


def recall(start, end, action="redact", text="#", attempt=1, run="a"):
    return Recall(
        **COMMON, attempt=attempt, run=run, recall_id=f"{start}-{end}", start=start, end=end, action=action,
        replacement=text, rule="r", category="c", policy_version="v",
    )  # fmt: skip


def cutover(attempt, trigger, how="cancel", seen_seq=-1):
    return Cutover(**COMMON, attempt=attempt, trigger=trigger, how=how, seen_seq=seen_seq)


def after(*events):
    screen = Screen(REQUEST_ID)
    ops = [op for event in events for op in screen.feed(event)]
    return screen, ops


def test_an_ordinary_answer():
    closed = Closed(**COMMON, outcome="completed")
    screen, ops = after(
        allow(), started(), chunk(0, 0, "Hel"), chunk(1, 3, "lo"), finished(1), cleared(1, final=True), closed
    )
    assert [type(op) for op in ops] == [Begin, Show, Show, Finish, Close]
    assert screen.visible == "Hello"
    assert screen.over


def test_an_unchecked_answer_ends_without_safety():
    screen, ops = after(allow(), started(check="off"), chunk(0, 0, "Hi"), finished(0))
    assert type(ops[-1]) is Finish
    assert screen.over


def test_text_waits_behind_the_gate_and_then_comes_at_once():
    screen, ops = after(started(), chunk(0, 0, "a"), chunk(1, 1, "b"))
    assert ops == [Begin(attempt=1, run="a", model="model-a")]
    assert [op.text for op in screen.feed(allow())] == ["a", "b"]


def test_a_denial_shows_the_refusal_and_nothing_else():
    denied = Verdict(**COMMON, decision="deny", policy_version="v", refusal="No.")
    screen, ops = after(started(), chunk(0, 0, "secret"), denied, allow(), chunk(1, 6, "more"))
    assert ops[-1] == Refuse(text="No.", policy_version="v")
    assert screen.visible == "No."


def test_a_ttft_cutover_behind_the_first_chunk_is_void():
    screen, _ = after(allow(), started(), chunk(0, 0, "in time"), cutover(2, "ttft"), started(2, "b"))
    assert screen.feed(chunk(0, 0, "late", 2, "b")) == ()
    assert screen.visible == "in time"


def test_the_late_loser_of_an_effective_cutover_is_not_heard():
    screen, ops = after(allow(), started(), cutover(2, "ttft"), chunk(0, 0, "late"), started(2, "b"))
    assert Restart(attempt=2, trigger="ttft") in ops
    screen.feed(chunk(0, 0, "heard", 2, "b"))
    assert screen.visible == "heard"


@pytest.mark.parametrize("winner", [1, 2])
def test_the_first_chunk_wins_a_race(winner):
    runs = {1: "a", 2: "b"}
    screen, _ = after(allow(), started(), cutover(2, "ttft", "race"), started(2, "b"))
    screen.feed(chunk(0, 0, "first", winner, runs[winner]))
    screen.feed(chunk(0, 0, "second", 3 - winner, runs[3 - winner]))
    assert screen.visible == "first"


def test_a_race_that_goes_on_after_a_denial_shows_nothing():
    denied = Verdict(**COMMON, decision="deny", policy_version="v", refusal="No.")
    failed = Failed(**COMMON, attempt=1, run="a", error_class="cancelled", message="", retryable=False, last_seq=-1)
    for end in (failed, finished(-1)):
        screen, ops = after(
            started(), cutover(2, "ttft", "race"), started(2, "b"), denied, end, chunk(0, 0, "x", 2, "b")
        )
        assert type(ops[-1]) is Refuse
        assert (screen.visible, screen.voice) == ("No.", None)


def test_clearance_of_a_silently_failed_run_does_not_clear_its_rival():
    screen, _ = after(allow(), started(exposure=1), cleared(-1, final=True), cutover(2, "ttft", "race"))
    for event in (started(2, "b", exposure=1), chunk(0, 0, "x", 2, "b"), chunk(1, 1, "y", 2, "b")):
        screen.feed(event)
    assert (screen.visible, screen.exposed_tokens) == ("x", 1)


def test_a_stall_cutover_is_void_when_the_voice_went_on():
    screen, _ = after(allow(), started(), chunk(0, 0, "a"), chunk(1, 1, "b"), cutover(2, "stall", seen_seq=0))
    assert screen.visible == "ab"
    screen.feed(cutover(2, "stall", seen_seq=1))
    assert screen.visible == ""


def test_a_chunk_whose_offset_contradicts_the_text_is_not_believed():
    screen, _ = after(allow(), started(), chunk(0, 0, "abc"), chunk(1, 2, "forged"), chunk(1, 3, "d"))
    assert screen.visible == "abcd"


def test_nothing_is_heard_behind_the_run_s_own_end():
    screen, _ = after(
        allow(), started(), chunk(0, 0, "all"), finished(0), chunk(1, 3, " and more"), cleared(1, final=True)
    )
    assert screen.visible == "all"


@pytest.mark.parametrize("check", ["on", "off"])
def test_the_end_waits_for_a_chunk_that_is_missing(check):
    end = [finished(1), *([cleared(1, final=True)] if check == "on" else [])]
    screen, ops = after(allow(), started(check=check), chunk(0, 0, "Hel"), *end)
    assert [type(op) for op in ops] == [Begin, Show]
    assert not screen.over
    assert [type(op) for op in screen.feed(chunk(1, 3, "lo"))] == [Show, Finish]
    assert screen.over


def test_exposure_is_bounded_until_safety_catches_up():
    screen, _ = after(allow(), started(exposure=2), *(chunk(i, i, "x") for i in range(5)))
    assert (screen.visible, screen.exposed_tokens) == ("xx", 2)
    screen.feed(cleared(1))
    assert screen.visible == "xxxx"


def test_gated_shows_only_what_is_cleared():
    screen, _ = after(allow(), started(mode="gated"), chunk(0, 0, "a"), chunk(1, 1, "b"), cleared(0))
    assert (screen.visible, screen.exposed_tokens) == ("a", 0)


def test_windowed_holds_the_newest_tokens():
    screen, _ = after(allow(), started(mode="windowed", hold_tokens=2), *(chunk(i, i, str(i)) for i in range(5)))
    assert screen.visible == "012"


def test_windowed_holds_the_youngest_milliseconds_of_the_log():
    screen, _ = after(allow(), started(mode="windowed", hold_ms=10))
    screen.feed(chunk(0, 0, "a"), 1)
    assert screen.visible == ""
    screen.feed(chunk(1, 1, "b"), 10)
    assert screen.visible == ""
    screen.feed(chunk(2, 2, "c"), 11)
    assert screen.visible == "a"


def test_no_writers_clock_ends_the_window_early():
    screen, _ = after(allow(), started(mode="windowed", hold_ms=10))
    screen.feed(chunk(0, 0, "a", at=1_000), 1)
    screen.feed(chunk(1, 1, "b", at=3_600_000_000), 2)  # the clock of its writer is an hour ahead
    assert screen.visible == ""


def test_without_the_logs_time_the_window_lasts_until_text_is_cleared():
    screen, _ = after(allow(), started(mode="windowed", hold_ms=10), *(chunk(i, i, str(i)) for i in range(3)))
    assert screen.visible == ""
    screen.feed(cleared(1))
    assert screen.visible == "01"


def test_policy_may_tighten_what_was_asked():
    screen, _ = after(allow(delivery=Delivery(mode="gated")), started(), chunk(0, 0, "a"))
    assert screen.visible == ""


def test_a_redaction_replaces_what_is_shown_and_what_is_to_come():
    screen, ops = after(allow(), started(), chunk(0, 0, "my ssn is 12"), recall(10, 14), chunk(1, 12, "34."))
    assert screen.visible == "my ssn is #."
    assert next(op for op in ops if isinstance(op, Replace)).start == 10


def test_the_earlier_of_two_overlapping_redactions_keeps_its_place():
    screen, _ = after(allow(), started(), chunk(0, 0, "0123456789"), recall(3, 6, text="A"), recall(5, 8, text="B"))
    assert screen.visible == "012AB89"


def test_a_stop_withdraws_everything_for_ever():
    screen, ops = after(allow(), started(), chunk(0, 0, "bad"), recall(0, 3, "stop", "Sorry."), chunk(1, 3, "worse"))
    assert screen.visible == "Sorry."
    assert isinstance(ops[-1], Withdraw)


def test_a_recall_of_another_run_is_ignored():
    screen, _ = after(allow(), started(), chunk(0, 0, "fine"), recall(0, 4, "stop", run="zombie"))
    assert screen.visible == "fine"


def test_what_was_recalled_of_a_run_before_it_is_heard_is_never_shown():
    early = recall(0, 3, text="#", attempt=2, run="b")
    screen, _ = after(allow(), started(), started(2, "b"), early, cutover(2, "ttft"), chunk(0, 0, "bad!", 2, "b"))
    assert screen.visible == "#!"


@pytest.mark.parametrize("racing", [1, 2])
def test_a_stop_while_a_race_is_undecided_counts_for_its_run(racing):
    runs = {1: "a", 2: "b"}
    stop = recall(0, 3, "stop", "Sorry.", racing, runs[racing])
    screen, _ = after(allow(), started(), cutover(2, "ttft", "race"), started(2, "b"), stop)
    assert screen.visible == ""
    screen.feed(chunk(0, 0, "bad", racing, runs[racing]))
    assert screen.visible == "Sorry."
    assert screen.over


def test_a_stop_of_a_rival_that_lost_the_race_changes_nothing():
    stop = recall(0, 3, "stop", "Sorry.", 2, "b")
    screen, _ = after(allow(), started(), cutover(2, "ttft", "race"), started(2, "b"), stop, chunk(0, 0, "fine"))
    assert screen.visible == "fine"


def test_the_first_closed_counts_and_nothing_is_said_after_it():
    first, second = Closed(**COMMON, outcome="expired"), Closed(**COMMON, outcome="completed")
    screen, _ = after(allow(), started(), chunk(0, 0, "Hel"), first)
    assert [screen.feed(event) for event in (second, chunk(1, 3, "lo"), cutover(2, "hard_error"))] == [(), (), ()]
    assert screen.closed is first
    assert screen.visible == "Hel"


ANSWERED = (started(), allow(), chunk(0, 0, "Hi"), finished(0), cleared(0, final=True))
STOP = recall(0, 2, "stop")
STOPPED = (*ANSWERED[:3], STOP)
MASK = Verdict(**COMMON, decision="mask", policy_version="v")
DENY = Verdict(**COMMON, decision="deny", policy_version="v", refusal="No.")
OFF = started(gate="off")
UNGATED = (OFF, *ANSWERED[2:])
RERUN = (*UNGATED, MASK, cutover(2, "mask"))


def closed(cause, seen_seq=-1, seen_attempts=1):
    return Closed(**COMMON, outcome="failed", cause=cause, seen_seq=seen_seq, seen_attempts=seen_attempts)


@pytest.mark.parametrize(
    ("cause", "holds", "void"),
    [
        ("answered", [ANSWERED, (*UNGATED, MASK)], [(), ANSWERED[:-1], STOPPED, (*UNGATED, DENY), RERUN]),
        ("denied", [(DENY,), (started(), STOP, DENY)], [(), (allow(),), ANSWERED]),
        ("recalled", [STOPPED, (OFF, STOP), (started(), STOP, MASK)], [(), (started(), STOP), ANSWERED]),
        ("deadline", [(), ANSWERED[:-1], (started(), STOP)], [ANSWERED, STOPPED, (DENY,)]),
        ("client_gone", [(), ANSWERED[:-1]], [ANSWERED, STOPPED, (DENY,)]),
        ("no_masked_prompt", [(MASK,)], [ANSWERED, STOPPED, (DENY,)]),
        ("too_many_open", [(), ANSWERED[:-1]], [ANSWERED, STOPPED, (DENY,)]),
        ("unreadable", [(), (allow(),)], [(started(),), (DENY,), (cutover(2, "ttft"), started(2, "b"))]),
        ("no_verdict", [(), (started(), chunk(0, 0, "x"))], [(allow(),), (MASK,), (DENY,), (OFF,)]),
        ("attempts_failed", [(started(),)], [(started(), cutover(2, "hard_error")), ANSWERED[:-1], ANSWERED]),
        ("cannot_begin", [()], [(started(),), (cutover(2, "ttft"),), ANSWERED]),
        ("no_first_token", [(started(),)], [(started(), chunk(1, 1, "x")), (cutover(2, "ttft"),), (OFF, finished(-1))]),
        ("stalled", [(started(), chunk(1, 1, "x"))], [(started(), chunk(0, 0, "x")), (cutover(2, "stall"),), ANSWERED]),
    ],
)  # fmt: skip
def test_a_closed_whose_cause_no_longer_holds_is_void(cause, holds, void):
    for before in holds:
        screen, ops = after(*before, closed(cause))
        assert isinstance(ops[-1], Close), before
        assert screen.closed is not None
    for before in void:
        screen, _ = after(*before)
        assert (screen.feed(closed(cause)), screen.closed) == ((), None), before
        assert [type(op) for op in screen.feed(Closed(**COMMON, outcome="failed"))] == [Close]  # without a cause


def test_what_the_router_had_read_does_not_make_its_closed_void():
    screen, _ = after(allow(), started(), chunk(0, 0, "x"), cutover(2, "stall", seen_seq=0), started(2, "b"))
    screen.feed(chunk(0, 0, "y", 2, "b"))
    assert screen.feed(closed("stalled", seen_attempts=2)) == ()
    assert screen.feed(closed("stalled", seen_seq=0)) == ()
    assert isinstance(screen.feed(closed("stalled", seen_seq=0, seen_attempts=2))[-1], Close)


def test_a_recall_after_the_end_still_counts():
    closed = Closed(**COMMON, outcome="expired")
    screen, _ = after(allow(), started(), chunk(0, 0, "bad"), closed, recall(0, 3, "stop", "Sorry."))
    assert screen.visible == "Sorry."


def test_a_masked_prompts_own_answer_is_never_shown():
    masked = Verdict(**COMMON, decision="mask", policy_version="v")
    screen, _ = after(started(), chunk(0, 0, "leak"), finished(0), masked, cleared(0, final=True))
    assert screen.visible == ""
    for event in (cutover(2, "mask"), started(2, "b"), chunk(0, 0, "safe", 2, "b")):
        screen.feed(event)
    assert screen.visible == "safe"


def test_an_event_of_another_request_is_refused():
    with pytest.raises(ValueError, match="cannot be folded"):
        Screen("019aa4b6-4500-7fff-bfff-fffffffffff0").feed(allow())


def test_catching_up_leaves_out_what_was_redacted():
    _, ops = after(allow(), started(), chunk(0, 0, "call 555"), recall(5, 8, text="[number]"), chunk(1, 8, " now"))
    sent = catch_up(0, ops)
    assert [op.text for op in sent if isinstance(op, Show | Replace)] == ["call ", "[number]", " now"]
    held = catch_up(6, ops[2:])  # this reader has "call 5" already
    assert [op.text for op in held if isinstance(op, Show)] == [" now"]


def test_catching_up_tells_no_end_of_an_attempt_that_was_given_up():
    _, ops = after(*UNGATED, MASK, cutover(2, "mask"), started(2, "b", gate="off"), chunk(0, 0, "safe", 2, "b"))
    assert [type(op) for op in ops if isinstance(op, Finish | Restart)] == [Finish, Restart]
    assert [op for op in catch_up(0, ops) if isinstance(op, Finish)] == []
    assert catch_up(0, ops)[-1] == Show(text="safe", tokens=1)


def test_gated_text_stays_hidden_even_if_nobody_checks_it():
    screen, _ = after(started(mode="gated", check="off"), allow(), chunk(0, 0, "Hi"))
    assert screen.visible == ""


def test_each_attempt_may_be_late_with_its_first_token():
    first = (allow(), started(), chunk(0, 0, "x"), cutover(2, "stall", seen_seq=0), started(2, "b"))
    screen, _ = after(*first, cutover(3, "ttft"), started(3, "c"), chunk(0, 0, "third", 3, "c"))
    assert screen.visible == "third"
    assert isinstance(after(*first, closed("no_first_token", seen_attempts=2))[1][-1], Close)


def test_a_repeated_mask_does_not_restart_the_masked_answer():
    masked = (started(), MASK, cutover(2, "mask"), started(2, "b"), chunk(0, 0, "safe", 2, "b"))
    screen, ops = after(*masked, cutover(3, "mask"))
    assert (screen.visible, [op.attempt for op in ops if isinstance(op, Restart)]) == ("safe", [2])


def test_a_clearance_after_the_final_one_takes_nothing_back():
    screen, ops = after(started(), allow(), chunk(0, 0, "Hi"), cleared(0, final=True), cleared(0), finished(0))
    assert (screen.visible, type(ops[-1])) == ("Hi", Finish)


def test_an_answer_is_withdrawn_once():
    screen, _ = after(allow(), started(), chunk(0, 0, "bad"), STOP)
    assert screen.feed(cleared(0)) == screen.feed(finished(0)) == ()


def test_a_redaction_around_another_is_replaced_once():
    for shown_first in (True, False):
        text, found = chunk(0, 0, "0123456789"), (recall(3, 5, text="#"), recall(1, 8, text="[x]"))
        screen, _ = after(allow(), started(), *((text, *found) if shown_first else (*found, text)))
        assert screen.visible == "0[x]#89"


def test_a_redaction_that_ends_where_another_begins_leaves_its_text():
    screen, _ = after(allow(), started(), chunk(0, 0, "0123456789"), recall(3, 5, text="##"), recall(0, 3, text="-"))
    assert screen.visible == "-##56789"


def test_the_tokens_of_a_chunk_that_a_redaction_cuts_count_once():
    _, ops = after(allow(), started(), recall(3, 5, text="#"), chunk(0, 0, "0123456789", tokens=4))
    assert [(op.text, op.tokens) for op in ops if isinstance(op, Show)] == [("012", 4), ("56789", 0)]


def test_catching_up_cuts_a_redaction_at_the_end_of_what_was_sent():
    said = (allow(), started(), chunk(0, 0, "call 5"), chunk(1, 6, "55"), recall(5, 8, text="[number]"))
    _, ops = after(*said, chunk(2, 8, " now"))
    edit, rest = catch_up(6, ops[2:])
    assert (edit.start, edit.end, edit.text, rest.text) == (5, 6, "[number]", " now")


def test_catching_up_counts_offsets_anew_after_a_restart():
    said = (allow(), started(), chunk(0, 0, "long text of old"), cutover(2, "stall", seen_seq=0), started(2, "b"))
    _, ops = after(*said, chunk(0, 0, "abc bad", 2, "b"), recall(4, 7, attempt=2, run="b"))
    assert [op.text for op in catch_up(16, ops[2:]) if isinstance(op, Show | Replace)] == ["abc ", "#"]


def test_what_waits_behind_a_gap_is_bounded():
    order = ChunkOrder()
    for seq in range(1, MAX_WAITING + 10):
        order.add(chunk(seq, seq, "x"))
    assert [each.seq for each in order.add(chunk(0, 0, "x"))] == list(range(MAX_WAITING + 1))
