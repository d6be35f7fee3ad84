"""Test what the safety service guarantees to the fold, for example that the ``seq`` of ``Cleared`` never falls."""

import random
import re
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.requests import Delivery
from schemas.stream import Cause, Chunk, Cleared, Failed, Recall
from services.policy import FoundSpan
from services.safety.decide.check_types import CheckResult
from services.safety.decide.request import REFUTABLE_CAUSES
from services.stream import Screen
from tests.support.examples import examples
from tests.unit.safety.test_determinism import CLASSIFIED, TEXTS
from tests.unit.safety.world import RunWriter, World, broken, clearances, pieces, policy, recalls, whole_window


@given(text=TEXTS, seed=st.integers(0, 2**32), mode=st.sampled_from(["optimistic", "gated"]), classified=st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_clearances_rise_and_tier_0_never_recalls_what_is_cleared(text, seed, mode, classified):
    rng = random.Random(seed)
    cut = pieces(text, rng)
    world = World(policy(**CLASSIFIED) if classified else policy(), rng)
    said = world.run(RunWriter(mode=mode).whole(cut), pace=30, patience=0.3)
    ends = [sum(map(len, cut[: index + 1])) for index in range(len(cut))]
    cleared_chars = 0
    last = -1
    for event in said:
        if isinstance(event, Cleared):
            assert event.seq > last or event.final
            assert event.seq >= last
            last = event.seq
            cleared_chars = ends[event.seq]
        elif not event.rule.startswith(("nemo/", "blocklist/", "classifier/")):
            assert event.start >= cleared_chars, "a recall must come before the clearance of the chunk it begins in"
    finals = [event for event in said if isinstance(event, Cleared) and event.final]
    stops = [event for event in said if isinstance(event, Recall) and event.action == "stop"]
    assert len(finals) == (0 if stops else 1)
    assert all(event.seq == len(cut) - 1 for event in finals)
    assert not finals or said[-1] is finals[0]


@given(text=TEXTS, seed=st.integers(0, 2**32))
@settings(max_examples=examples(100), deadline=None)
def test_gated_readers_never_see_what_is_recalled(text, seed):
    """With gated delivery, the fold never shows text that any tier of safety recalls."""
    rng = random.Random(seed)
    world = World(policy(**CLASSIFIED), rng)
    answer = RunWriter(mode="gated")
    world.run([answer.verdict(), *answer.whole(pieces(text, rng))], pace=9, patience=0.3)
    bad = [text[event.start : event.end] for event in world.log if isinstance(event, Recall)]
    screen = Screen(answer.head["request_id"])
    for event in world.log:
        screen.feed(event)
        for span in bad:
            assert span not in screen.visible


@given(text=TEXTS, seed=st.integers(0, 2**32), classified=st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_gated_clearances_never_cover_what_is_recalled_later(text, seed, classified):
    rng = random.Random(seed)
    cut = pieces(text, rng, 4)
    ends = [sum(map(len, cut[: index + 1])) for index in range(len(cut))]
    held = policy(**CLASSIFIED) if classified else policy()
    shown = 0
    for event in World(held, rng).run(RunWriter(mode="gated").whole(cut), pace=30, patience=0.3):
        if isinstance(event, Cleared):
            shown = ends[event.seq]
        elif not event.rule.startswith("nemo/"):  # a whole window has no beginning to hold back
            assert event.start >= shown


@given(text=TEXTS, seed=st.integers(0, 2**32))
@settings(max_examples=examples(60), deadline=None)
def test_without_a_stop_the_reader_ends_with_the_redacted_text(text, seed):
    rng = random.Random(seed)
    world = World(policy(), rng)
    answer = RunWriter()
    said = world.run([answer.verdict(), *answer.whole(pieces(text, rng))], pace=9, patience=0.5)
    screen = Screen(answer.head["request_id"])
    for event in world.log:
        screen.feed(event)
    assert screen.over
    if any(event.action == "stop" for event in said if isinstance(event, Recall)):
        assert screen.visible == policy().document.replacements["stop"]
    else:
        expected = text
        for recall in sorted((event for event in said if isinstance(event, Recall)), key=lambda each: -each.start):
            expected = expected[: recall.start] + recall.replacement + expected[recall.end :]
        assert screen.visible == expected
        assert "anna.berg@" not in screen.visible


def test_a_live_beginning_holds_back_its_chunk_only():
    cut = ["one two ", "three four ", "five six seven ", "eight nine ten ", "mail anna", ".berg@exam", "ple.org now"]
    held = policy(stride_chars="64")
    world = World(held, random.Random(0))
    answer = RunWriter()
    world.run([answer.started(), *answer.chunks(cut)])
    assert clearances(world.said)[-1] == (3, False)  # offset 64 is inside the address
    world = World(held, random.Random(0))
    said = world.run(answer.whole(cut))
    assert recalls(said) == {(54, 75, "redact", "pii/email", "email")}
    order = [(type(event), getattr(event, "seq", None)) for event in said]
    assert order.index((Recall, None)) < order.index((Cleared, 6))


def test_an_empty_answer_is_cleared_for_good():
    answer = RunWriter()
    assert clearances(World(policy(), random.Random(0)).run([answer.started(), answer.finished(-1)])) == [(-1, True)]


def test_a_failed_run_is_checked_to_its_end():
    answer = RunWriter()
    events = [answer.started(), *answer.chunks(["Ask bob", "@corp.example.com"]), answer.failed(1)]
    said = World(policy(), random.Random(0)).run(events)
    assert recalls(said) == {(4, 24, "redact", "pii/email", "email")}
    assert clearances(said) == [(0, False), (1, True)] or clearances(said)[-1] == (1, True)


def test_a_closed_request_is_checked_to_its_end_and_then_forgotten():
    answer = RunWriter()
    events = [answer.started(), *answer.chunks(["Ask bob", "@corp.example.com"]), answer.closed("expired")]
    world = World(policy(), random.Random(0))
    said = world.run([*events, *answer.chunks(["late", "later", "AKIAIOSFODNN7EXAMPLE "])])
    assert recalls(said) == {(4, 24, "redact", "pii/email", "email")}


EMAIL = {(4, 24, "redact", "pii/email", "email")}


@pytest.mark.parametrize("cause", sorted(REFUTABLE_CAUSES))
def test_a_closed_that_may_be_void_ends_no_check(cause):
    """After a ``Closed`` that may be void, later text is still checked, because the fold may show that text."""
    answer = RunWriter()
    chunks = answer.chunks(["Ask bob", "@corp.example.com", " now."])
    for void in (answer.closed("failed", cause), answer.closed("failed", cause, seen_seq=-1, attempt=1)):
        events = [answer.verdict(), answer.started(), chunks[0], void]
        world = World(policy(), random.Random(0))
        assert not any(final for _, final in clearances(world.run(events)))
        world.run([*chunks[1:], answer.finished(2)])
        assert recalls(world.said) == EMAIL
        assert clearances(world.said)[-1] == (2, True)
    early = World(policy(), random.Random(0))
    early.run([answer.closed("failed", cause), answer.started(), *chunks, answer.finished(2)])
    assert recalls(early.said) == EMAIL


def test_closed_for_a_lasting_stall_ends_the_check_of_its_voice_alone():
    answer, rival = RunWriter(), RunWriter(attempt=2, run="r2")
    events = [answer.started(), rival.started(), *answer.chunks(["Ask bob", "@corp.example.com"])]
    world = World(policy(), random.Random(0))
    world.run([*events, answer.closed("failed", "stalled", seen_seq=1, seen_attempts=1, attempt=1)])
    assert recalls(world.said) == EMAIL
    assert [(event.attempt, event.final) for event in world.said if isinstance(event, Cleared)][-1] == (1, True)
    world.run([*rival.chunks(["Ask bob@corp.example.com"]), rival.finished(0)])
    assert {event.attempt for event in world.said if isinstance(event, Recall)} == {1, 2}


@pytest.mark.parametrize("cause", sorted(set(get_args(Cause)) - REFUTABLE_CAUSES))
def test_any_other_closed_ends_the_checks(cause):
    answer = RunWriter()
    events = [answer.started(), *answer.chunks(["Ask bob", "@corp.example.com"]), answer.closed("expired", cause)]
    assert recalls(World(policy(), random.Random(0)).run(events)) == EMAIL


def test_the_end_waits_for_a_missing_chunk():
    answer = RunWriter()
    first, second, third = answer.chunks(["Ask bob", "@corp.example", ".com!"])
    world = World(policy(), random.Random(0))
    assert not any(final for _, final in clearances(world.run([answer.started(), first, third, answer.finished(2)])))
    assert clearances(world.run([second]))[-1] == (2, True)
    assert recalls(world.said) == {(4, 24, "redact", "pii/email", "email")}


def test_a_closed_ends_the_check_of_a_run_that_ended_with_a_gap():
    """A ``Closed`` ends the wait for a chunk that was never written. The text before that chunk is checked."""
    answer = RunWriter()
    first, second, _, fourth = answer.chunks(["Ask bob", "@corp.example.com", "!", "!"])
    for end in (answer.finished(3), answer.failed(3)):
        world = World(policy(), random.Random(0))
        assert recalls(world.run([answer.started(), first, second, fourth, end])) == set()
        stalled = recalls(world.run([answer.closed("failed", "stalled", seen_seq=1, attempt=1)]))
        assert stalled == (EMAIL if isinstance(end, Failed) else set())  # after `Finished`, the `Closed` is void
        assert recalls(world.run([answer.closed("expired", "deadline")])) == EMAIL
        assert clearances(world.said)[-1] == (1, True)


def test_a_failed_run_with_a_gap_is_checked_when_all_attempts_failed():
    answer, other = RunWriter(), RunWriter(attempt=2, run="r2")
    first, second, _, fourth = answer.chunks(["Ask bob", "@corp.example.com", "!", "!"])
    closed = answer.closed("failed", "attempts_failed", seen_seq=1)
    world = World(policy(), random.Random(0))
    assert recalls(world.run([answer.started(), first, second, fourth, answer.failed(3)])) == set()
    assert recalls(world.run([closed])) == EMAIL
    assert clearances(world.said)[-1] == (1, True)
    # The `Closed` is void if another attempt was opened, and the text of that attempt is checked.
    assert clearances(world.run(other.whole(["Hello"])))[-1] == (0, True)


def test_a_finished_run_with_a_gap_waits_if_a_closed_is_perhaps_void():
    answer = RunWriter()
    first, second, third = answer.chunks(["Ask bob", "@corp.example", ".com!"])
    world = World(policy(), random.Random(0))
    closed = answer.closed("failed", "attempts_failed")
    world.run([answer.started(), first, third, answer.finished(2), closed, second])
    assert clearances(world.said)[-1] == (2, True)
    assert recalls(world.said) == EMAIL


def test_duplicates_contradictions_and_strangers_are_not_heard():
    answer, zombie = RunWriter(), RunWriter(run="zombie")
    chunks = answer.chunks(["Hello ", "world."])
    wrong = Chunk(**answer.voice, seq=1, start=99, text="AKIAIOSFODNN7EXAMPLE ")
    beyond = Chunk(**answer.voice, seq=2, start=12, text="AKIAIOSFODNN7EXAMPLE ")
    events = [
        answer.started(), zombie.started(), chunks[0], chunks[0], wrong, *zombie.whole(["AKIAIOSFODNN7EXAMPLE "]),
        chunks[1], answer.finished(1), beyond, chunks[1],
    ]  # fmt: skip
    said = World(policy(), random.Random(0)).run(events)
    assert recalls(said) == set()
    assert clearances(said)[-1] == (1, True)
    assert {event.run for event in said} == {"r1"}


def test_both_sides_of_a_race_are_checked():
    one, two = RunWriter(), RunWriter(attempt=2, run="r2")
    key = "AKIAIOSFODNN7EXAMPLE "
    said = World(policy(), random.Random(0)).run(
        [one.started(), two.started(), *one.whole([key])[1:], *two.whole([key])[1:]]
    )
    assert {(event.attempt, event.run) for event in said if isinstance(event, Recall)} == {(1, "r1"), (2, "r2")}


@pytest.mark.parametrize("order", [0, 1])
def test_denied_runs_are_left_alone(order):
    key = ["AKIAIOSFODNN7EXAMPLE "]
    denied = RunWriter()
    events = (
        [denied.verdict("deny"), *denied.whole(key)]
        if order
        else [denied.started(), denied.verdict("deny"), *denied.whole(key)[1:]]
    )
    assert World(policy(), random.Random(0)).run(events) == []


def test_a_run_whose_worker_says_that_nobody_checks_is_checked():
    said = World(policy(), random.Random(0)).run(RunWriter(check="off").whole(["AKIAIOSFODNN7EXAMPLE "]))
    assert any(isinstance(event, Recall) for event in said)


def test_a_verdict_may_make_delivery_gated():
    answer = RunWriter()
    text = ["word " * 4] * 10
    events = [answer.started(), answer.verdict(delivery=Delivery(mode="gated")), *answer.whole(text)[1:]]
    gated = clearances(World(policy(), random.Random(0)).run(events))
    open_ = clearances(World(policy(), random.Random(0)).run(answer.whole(text)))
    assert gated[0][0] < open_[1][0] or len(gated) < len(open_)


@pytest.mark.parametrize(("tenant", "modes"), [("acme", '["gated"]'), ("clinic", '["optimistic", "gated"]')])
def test_a_policy_that_makes_delivery_gated_is_obeyed_before_the_verdict(tenant, modes):
    """If a policy makes delivery gated, text is cleared only after the classifiers have checked it.

    This is also true of text that comes before the verdict: as soon as the verdict allows the prompt, the fold shows
    all cleared text.
    """
    text = "I have second thoughts about it. " + "word " * 60
    answer = RunWriter(tenant=tenant)
    events = answer.whole([text[at : at + 5] for at in range(0, len(text), 5)])
    events.insert(30, answer.verdict(delivery=Delivery(mode="gated")))
    world = World(policy(**CLASSIFIED, modes=modes), random.Random(0))
    world.run(events)
    screen = Screen(answer.head["request_id"])
    for event in world.log:
        screen.feed(event)
        assert "second thoughts" not in screen.visible
    assert screen.visible.startswith("I have [email address] about it.")


def test_text_of_other_tenants_is_cleared_without_the_classifiers():
    text = ["word " * 4] * 20
    plain, classified = (
        clearances(World(held, random.Random(0)).run(RunWriter().whole(text)))
        for held in (policy(), policy(**CLASSIFIED))
    )
    gated = clearances(World(policy(**CLASSIFIED), random.Random(0)).run(RunWriter(tenant="clinic").whole(text)))
    assert classified == plain != gated


def test_prompt_rules_stop_at_the_earliest_character():
    held = policy("strict")
    answer = RunWriter(tenant="local")
    key = "sk-Ab3dEfGh1jKlMn0pQrStUvWxYz0123456789"
    world = World(held, random.Random(0))
    world.run([answer.started(), *answer.chunks([f"It is {key[:24]}", "x"])])
    (event,) = [event for event in world.said if isinstance(event, Recall)]
    assert (event.action, event.start, event.end) == ("stop", 6, 6 + 23)


def test_after_a_stop_of_tier_0_nothing_more_is_said():
    answer = RunWriter()
    cut = ["-----BEGIN PRIVATE KEY-----", " and AKIAIOSFODNN7EXAMPLE ", "x" * 300]
    said = World(policy(), random.Random(0)).run(answer.whole(cut))
    assert [event.rule for event in said if isinstance(event, Recall)] == ["secrets/private_key"]
    assert all(event.seq < 0 for event in said if isinstance(event, Cleared))


@pytest.mark.parametrize(("name", "tenant"), [("default", "acme"), ("strict", "local")])
def test_what_cannot_be_checked_is_withdrawn_and_never_cleared(name, tenant):
    said = World(policy(name), random.Random(0), check=broken).run(RunWriter(tenant=tenant).whole(["Good day."]))
    assert {(event.action, event.category) for event in said} == {("stop", "unchecked")}
    assert "safety/tier1" in {event.rule for event in said}
    assert {event.replacement for event in said} == {policy(name).document.replacements["stop"]}


def test_a_window_verdict_recalls_each_character_once():
    held = policy(first_chars="64", stride_chars="64")
    text = "x" * 100 + " rude word " + "y" * 400

    def redacting(look):
        return CheckResult(tuple(FoundSpan(span.rule, "email", span.start, span.end) for span in whole_window(look)))

    said = World(held, random.Random(0), check=redacting).run(RunWriter().whole([text]))
    found = [(event.start, event.end) for event in said if isinstance(event, Recall)]
    assert found == [(0, 128), (128, 192), (192, 256), (256, 320), (320, 384)]
    stopped = World(held, random.Random(0)).run(RunWriter().whole([text]))
    (event,) = [event for event in stopped if isinstance(event, Recall)]
    assert (event.action, event.rule, event.start, event.end) == ("stop", "nemo/rude", 0, 128)


def test_finding_that_a_window_cuts_is_left_to_the_window_with_all_of_it():
    def words(look):
        found = re.finditer("[a-z]{5,}", look.text)
        return CheckResult(tuple(FoundSpan("words", "email", *match.span()) for match in found))

    text = "many words, several letters each, of which some straddle every single offset " * 8
    held = policy(max_findings=1_000)
    said = World(held, random.Random(0), check=words).run(RunWriter().whole(pieces(text, random.Random(1))))
    assert recalls(said) == {(*match.span(), "redact", "words", "email") for match in re.finditer("[a-z]{5,}", text)}


@pytest.mark.parametrize("regex", ["forbidden.*", ".*forbidden", ".{0,400}forbidden"])
@pytest.mark.parametrize("lead", [0, 7, 39, 48, 300, 311, 500, 700])
def test_finding_that_no_window_holds_without_touching_it_is_recalled(regex, lead):
    def found(look):
        return CheckResult(tuple(FoundSpan("words", "email", *match.span()) for match in re.finditer(regex, look.text)))

    text = "x" * lead + "forbidden" + "y" * 900
    said = World(policy(), random.Random(0), check=found).run(RunWriter().whole(pieces(text, random.Random(1))))
    assert any(start <= lead and end >= lead + len("forbidden") for start, end, *_ in recalls(said))


@pytest.mark.parametrize(("lead", "tail"), [(90, 0), (400, 100)])
def test_a_finding_at_the_edge_of_the_last_or_of_two_windows_is_recalled(lead, tail):
    """A finding is recalled if it ends where the last window ends, or if it is exactly the overlap of two windows."""

    def find(look):
        return CheckResult(tuple(FoundSpan("nemo/q", "email", *found.span()) for found in re.finditer("Q+", look.text)))

    size = 10 if tail == 0 else 272  # windows of the default policy end at 672 and 720, and the latter begins at 400
    said = World(policy(), random.Random(0), find).run(RunWriter().whole(["." * lead + "Q" * size + "." * tail]))
    assert recalls(said) == {(lead, lead + size, "redact", "nemo/q", "email")}


def test_chunks_after_a_gap_are_read_when_it_is_filled():
    answer = RunWriter()
    first, second, third, fourth = answer.chunks(["Ask ", "bob", "@corp.example.com", " now. " + "x " * 40])
    said = World(policy(), random.Random(0)).run([answer.started(), first, third, second, fourth])
    assert recalls(said) == {(4, 24, "redact", "pii/email", "email")}


def test_two_tiers_that_find_the_same_say_it_once():
    def same(look):
        found = re.finditer(r"bob@corp\.example\.com", look.text)
        return CheckResult(tuple(FoundSpan("pii/email", "email", *match.span()) for match in found))

    said = World(policy(), random.Random(0), check=same).run(
        RunWriter().whole(["Ask bob@corp.example.com. ", "x " * 90])
    )
    assert len([event for event in said if isinstance(event, Recall)]) == 1


def test_a_flood_of_findings_stops():
    text = " ".join(f"a{number}@example.com" for number in range(70)) + " "
    said = World(policy(), random.Random(0)).run(RunWriter().whole([text]))
    found = [event for event in said if isinstance(event, Recall)]
    assert len(found) == 65
    assert [event.action for event in found] == ["redact"] * 64 + ["stop"]
    assert (found[-1].category, found[-1].rule) == ("flood", "safety/flood")


@pytest.mark.parametrize(("count", "actions"), [(4, ["redact"] * 4), (5, ["redact"] * 4 + ["stop"])])
def test_a_finding_in_several_windows_counts_once_for_the_flood(count, actions):
    def find(look):
        return CheckResult(tuple(FoundSpan("nemo/q", "email", *found.span()) for found in re.finditer("Q", look.text)))

    text = ("." * 29 + "Q") * count + "." * 400
    said = World(policy(max_findings=4), random.Random(0), find).run(RunWriter().whole([text]))
    assert [event.action for event in said if isinstance(event, Recall)] == actions


def test_flags_are_not_recalls():
    said = World(policy(), random.Random(0)).run(RunWriter().whole(["Server 203.0.113.7 answered."]))
    assert recalls(said) == set()
    assert clearances(said)[-1] == (0, True)
