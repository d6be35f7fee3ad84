"""Test the fair queue, the offsets of check windows, and the core of the safety service."""

import gc
import json
import random
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.stream import Recall
from services.policy import build
from services.policy.source.document import WindowSpec
from services.processor.fair_queue import FairQueue
from services.safety import core as core_module
from services.safety import partition as partition_module
from services.safety.core import SafetyCore
from services.safety.decide import run as run_module
from services.safety.decide.check_types import CheckRequest, CheckResult, Unchecked
from services.safety.decide.windows import next_offset
from tests.support.examples import examples
from tests.unit.safety.world import NOW_US, RunWriter, World, as_set, clearances, honest, policy, recalls, record


def test_tenants_take_turns():
    queue = FairQueue()
    for number in range(5):
        queue.put("a", number)
    queue.put("b", "only")
    assert queue.turn(2) == ("a", [0, 1])
    assert queue.turn(2) == ("b", ["only"])
    queue.put_back("a", [9])
    assert [queue.get(), queue.get(["a"]), queue.turn(9)] == [("a", 9), None, ("a", [2, 3, 4])]
    assert (len(queue), queue.get(), queue.turn(1)) == (0, None, None)


@given(first=st.integers(1, 100), stride=st.integers(1, 200))
@settings(deadline=None)
def test_looks_are_at_absolute_offsets_that_double_up_to_the_stride(first, stride):
    windows = WindowSpec(first_chars=first, stride_chars=stride)
    offsets = [0]
    while offsets[-1] < 1_000:
        offsets.append(next_offset(offsets[-1], windows))
    assert offsets == sorted(set(offsets))
    assert offsets[1] == min(first, stride)
    assert all(offset % stride == 0 for offset in offsets if offset >= stride)
    assert {next_offset(position, windows) for position in range(1_000)} <= set(offsets) | {offsets[-1] + stride}


def live(held=None, partitions=(0,)):
    core = SafetyCore(held or policy(), "safety/t")
    for partition in partitions:
        core.gained(partition)
        assert core.caught_up(partition, NOW_US, NOW_US) == []
    return core


def feed(core, events, partition=0):
    effects = []
    for event in events:
        core.read(record(event, partition, "trace"), NOW_US, NOW_US)
    while core.busy:
        effects += core.step(NOW_US)
    return effects


def test_what_waits_is_counted_until_it_is_dealt_with():
    core = live()
    core.read(record(RunWriter().started()), NOW_US, NOW_US)
    assert core.backlog == 1
    feed(core, [])
    assert core.backlog == 0


def test_an_open_answer_outlives_all_that_was_answered_after_it(monkeypatch):
    monkeypatch.setattr(partition_module, "MAX_OPEN", 3)
    old = RunWriter(99)
    log = [old.started(), *old.chunks(["Ask bob@corp.example.com! ", "x " * 90])]
    for number in range(10):
        answer = RunWriter(number)
        world = World(policy(), random.Random(0))
        world.run(answer.whole(["Good day. " * 30]))
        log += [*world.log, answer.closed()]
    core, again = replayed(log)
    assert core.open == 1
    recalled = [effect.event for effect in again if not isinstance(effect, CheckRequest)]
    assert old.head["request_id"] in {event.request_id for event in recalled if isinstance(event, Recall)}


def test_a_backlog_of_verdicts_leaves_an_open_answer_alone(monkeypatch):
    monkeypatch.setattr(partition_module, "MAX_OPEN", 3)
    core, old = live(), RunWriter(99)
    first, second = old.chunks(["Ask bob@corp.", "example.com! " + "x" * 80])
    feed(core, [old.verdict(), old.started(), first])
    feed(core, [RunWriter(number).verdict() for number in range(10)])
    assert len(recalls(effect.event for effect in feed(core, [second]) if not isinstance(effect, CheckRequest))) == 1


def test_failed_requests_make_room_for_open_ones(monkeypatch):
    monkeypatch.setattr(partition_module, "MAX_OPEN", 3)
    core, old = live(), RunWriter(99)
    first, second = old.chunks(["Ask bob@corp.", "example.com! " + "x" * 80])
    feed(core, [old.started(), first])
    for number in range(10):
        failed = RunWriter(number)
        closed = failed.closed("failed", "attempts_failed")
        for look in feed(core, [failed.started(), *failed.chunks(["Good day."]), failed.failed(0), closed]):
            core.take_outcome(look, CheckResult(()), NOW_US)
    assert (core.open, core.take_dropped()) == (3, 0)
    assert len(recalls(effect.event for effect in feed(core, [second]) if not isinstance(effect, CheckRequest))) == 1


def test_requests_that_are_dropped_are_counted(monkeypatch):
    monkeypatch.setattr(partition_module, "MAX_OPEN", 3)
    core = live()
    feed(core, [RunWriter(number).started() for number in range(5)])
    assert (core.open, core.take_dropped(), core.take_dropped()) == (3, 2, 0)


def test_a_replaced_policy_is_freed_with_its_last_request():
    core, answer = live(build(policy().files)), RunWriter()
    replaced = weakref.ref(core.policy.automaton)
    effects = feed(core, answer.whole(["Good day."]))
    core.policy = policy()
    gc.collect()
    assert replaced() is not None
    for look in effects:
        core.take_outcome(look, CheckResult(()), NOW_US)
    feed(core, [answer.closed()])
    del effects, look
    gc.collect()
    assert replaced() is None


def test_every_event_carries_time_source_and_trace():
    letters = feed(live(), RunWriter().whole(["Ask bob@corp.example.com! ", "x" * 80]))
    (recall,) = [letter for letter in letters if not isinstance(letter, CheckRequest)]
    assert (recall.event.at, recall.event.source, recall.traceparent) == (NOW_US, "safety/t", "trace")


def test_a_closed_request_is_forgotten_and_stays_closed():
    core = live()
    answer = RunWriter()
    looks = [
        effect for effect in feed(core, [*answer.whole(["Hi."]), answer.closed()]) if isinstance(effect, CheckRequest)
    ]
    assert core.open == 1
    for look in looks:
        core.take_outcome(look, CheckResult(()), NOW_US)
    assert core.open == 0
    feed(core, [answer.started(), *answer.chunks(["late"])])
    feed(core, [RunWriter(5).closed(), RunWriter(5).started()])
    assert core.open == 0


def test_a_stop_of_tier_2_leaves_nothing_open():
    held = policy(classifiers='["doubt"]')
    core = live(held)
    answer = RunWriter()
    effects = feed(core, [*answer.whole(["Good day. " * 40]), answer.closed()])
    for look in [effect for effect in effects if isinstance(effect, CheckRequest)]:
        core.take_outcome(look, Unchecked("it broke") if look.tier == 2 else CheckResult(()), NOW_US)
    assert core.open == core.pending_checks == 0


def replayed(events, held=None):
    """Let a new core take over a partition with these events, and give it the outcomes of the checks that it requests.

    Return the core and its effects. ``held`` is the policy; None for the default policy.
    """
    core = SafetyCore(held or policy(), "safety/t")
    core.gained(0)
    assert feed(core, events) == []
    effects = core.caught_up(0, NOW_US, NOW_US)
    for look in effects:
        if isinstance(look, CheckRequest):
            effects += core.take_outcome(look, honest(look), NOW_US)
    return core, effects


def test_what_is_on_the_log_is_neither_said_nor_looked_at_again():
    answer = RunWriter()
    world = World(policy(), random.Random(0))
    text = ["Ask bob@corp.example.com. ", "x " * 90]
    world.run([answer.started(), *answer.chunks(text)])
    core, again = replayed(world.log)
    assert {type(effect) for effect in again} == {CheckRequest}
    assert core.open == 1
    world = World(policy(), random.Random(0))
    world.run(answer.whole(text))
    for held in (policy(), policy(max_findings=3)):  # another policy version does not check cleared answers again
        core, again = replayed([*world.log, answer.closed()], held)
        assert (again, core.open, core.pending_checks) == ([], 0, 0)


def test_what_a_stranger_says_about_another_run_does_not_count():
    answer, stranger = RunWriter(), RunWriter(run="stranger")
    world = World(policy(), random.Random(0))
    world.run(stranger.whole(["Ask bob@corp.example.com."]))
    mine = [answer.started(), *answer.chunks(["Ask bob@corp.example.com."]), answer.finished(0)]
    _, effects = replayed([*mine, *world.said])
    expected = World(policy(), random.Random(0)).run(mine)
    assert as_set([effect.event for effect in effects if not isinstance(effect, CheckRequest)]) == as_set(expected)


def test_requests_that_never_close_are_forgotten_after_the_deadline():
    core = live()
    feed(core, [RunWriter().started()])
    longest_us = policy().classes.longest_total_ms("batch") * 1_000
    due_us = core.alarm_us(0, NOW_US)
    assert due_us == NOW_US + longest_us + 60_000_000
    core.tick(0, due_us - 1, due_us)
    assert (core.expired, core.open) == (0, 1)
    core.tick(0, due_us, due_us)
    assert (core.expired, core.open) == (1, 0)
    assert core.alarm_us(0, due_us) is None


def test_open_requests_are_bounded(monkeypatch):
    monkeypatch.setattr(partition_module, "MAX_OPEN", 3)
    monkeypatch.setattr(partition_module, "MAX_CLOSED", 2)
    core = live()
    feed(core, [RunWriter(number).started() for number in range(5)])
    assert core.open == 3
    feed(core, [RunWriter(number).closed() for number in range(5)])
    assert core.open == 0


def test_lost_partition_is_forgotten_and_the_kept_one_is_not_affected():
    core = live(partitions=(0, 1))
    looks = feed(core, RunWriter().whole(["Hi."]), 0) + feed(core, RunWriter(1).whole(["Hi."]), 1)
    mine, kept = [effect for effect in looks if isinstance(effect, CheckRequest)]
    core.read(record(RunWriter(2).started()), NOW_US, NOW_US)
    core.lost(0)
    assert (core.open, core.pending_checks, core.backlog) == (1, 1, 1)
    assert (core.waits_for(mine), core.waits_for(kept)) == (False, True)
    assert feed(core, []) == []
    assert (core.open, core.backlog) == (1, 0)
    assert core.take_outcome(mine, CheckResult(()), NOW_US) == []
    assert [effect.event.final for effect in core.take_outcome(kept, CheckResult(()), NOW_US)] == [True]


def test_a_long_text_takes_turns_with_other_tenants(monkeypatch):
    monkeypatch.setattr(run_module, "SLICE_CHARS", 100)
    monkeypatch.setattr(core_module, "STEP_CHARS", 100)
    core = live()
    whale, minnow = RunWriter(1, tenant="whale"), RunWriter(2, tenant="minnow")
    for event in [whale.started(), minnow.started()]:
        core.read(record(event), NOW_US, NOW_US)
    feed(core, [])
    (huge,) = whale.chunks(["a.b@" * 2_500])
    for event in [huge, whale.finished(0), *minnow.chunks(["call eve@corp.example.com now"])]:
        core.read(record(event), NOW_US, NOW_US)
    steps = 0
    while not any(getattr(getattr(effect, "event", None), "tenant", "") == "minnow" for effect in core.step(NOW_US)):
        steps += 1
    assert steps <= 4, "the whale's text is 100 slices long"
    assert core.busy


@given(cut=st.integers(1, 400), seed=st.integers(0, 99))
@settings(max_examples=examples(50), deadline=None)
def test_slices_change_nothing(cut, seed):
    text = "Write to anna.berg@example.org, or call +49 30 901820. " * 6
    events = RunWriter().whole([text[:cut], text[cut:] or "."])
    expected = as_set(World(policy(), random.Random(seed)).run(events))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "SLICE_CHARS", 7 + seed)
        assert as_set(World(policy(), random.Random(seed)).run(events, pace=9)) == expected


def test_text_that_waits_too_long_for_its_check_counts_as_unchecked():
    core = live(policy(max_waiting_chars=1_000))
    effects = feed(core, [RunWriter().started(), *RunWriter().chunks(["word " * 300])])
    (letter,) = [effect for effect in effects if not isinstance(effect, CheckRequest)]
    assert (letter.event.action, letter.event.category, letter.event.start) == ("stop", "unchecked", 0)


def test_unchecked_text_is_never_cleared_whatever_policy_calls_it():
    """Text whose check failed is not cleared, even if the policy's action for ``unchecked`` is ``flag``.

    If the action is ``redact``, the text whose check failed is replaced, and the text that follows it is cleared.
    """

    def ruled(action):
        held = policy()
        tenant = {"findings": {"output": {"unchecked": action}}}
        data = {**held.rego.data, "tenants": {**held.rego.data["tenants"], "t": tenant}}
        files = {**held.files, "rego/data.json": json.dumps(data).encode()}
        return build(files)

    broken_once = iter([Unchecked("it broke")])

    def check(look):
        return next(broken_once, CheckResult(()))

    text = ["the first word. ", "more words. ", "and the last of them. "]
    said = World(ruled("flag"), random.Random(0), check=check).run(RunWriter(tenant="t").whole(text))
    assert said == []
    broken_once = iter([Unchecked("it broke")])
    said = World(ruled("redact"), random.Random(0), check=check).run(RunWriter(tenant="t").whole(text))
    assert recalls(said) == {(0, 16, "redact", "safety/tier1", "unchecked")}
    assert clearances(said)[0] == (0, False)
    assert clearances(said)[-1] == (2, True)
    assert isinstance(said[0], Recall)


def test_rego_that_fails_on_a_finding_stops_the_answer():
    held = policy()
    source = held.files["rego/findings.rego"].decode().replace("} else := strictest[input.side]", "}")
    data = held.files["rego/data.json"].replace(b'"email": "redact",', b"")
    spoilt = build({**held.files, "rego/findings.rego": source.encode(), "rego/data.json": data})
    said = World(spoilt, random.Random(0)).run(RunWriter().whole(["Ask bob@corp.example.com."]))
    assert {(event.action, event.category) for event in said} == {("stop", "email")}


@pytest.mark.parametrize("started", [0, 1, 2])
def test_a_verdict_after_the_first_changes_nothing(started):
    # A request is evaluated twice after a crash or a rebalance. The fold obeys the first verdict only.
    answer = RunWriter()
    begun, *rest = answer.whole(["Here it is: ", "AKIAIOSFODNN7EXAMPLE ", "and more. " * 10])
    events = [answer.verdict(), answer.verdict("deny")]
    events.insert(started, begun)
    said = World(policy(), random.Random(0)).run([*events, *rest])
    assert len(recalls(said)) == 1
    assert clearances(said)[-1] == (2, True)


def test_no_check_is_late_while_a_partition_catches_up():
    core, answer = SafetyCore(policy(max_waiting_chars=1_000), "safety/t"), RunWriter()
    chunks = answer.chunks(["Good day. "] * 310)
    core.gained(0)
    assert feed(core, [answer.verdict(), answer.started(), *chunks[:300]]) == []
    effects = core.caught_up(0, NOW_US, NOW_US)
    effects += feed(core, [*chunks[300:], answer.finished(309)])  # before a check has answered
    said = []
    for effect in effects:
        if isinstance(effect, CheckRequest):
            said += core.take_outcome(effect, CheckResult(()), NOW_US)
        else:
            said.append(effect)
    said = [effect.event for effect in said]
    assert not recalls(said)
    assert clearances(said)[-1] == (309, True)
