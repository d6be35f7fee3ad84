"""Test that the simulated engine generates each token once, in order and at the predicted times, under any load."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.generator.engines.simulated.batch_scheduler import BatchScheduler, CostModel
from services.generator.engines.simulated.fault_script import FaultScript, parse_script
from services.generator.engines.simulated.sequence import SimulatedSequence, scripted_refusal
from services.physics.catalogue.gpus import gpu
from services.physics.catalogue.models import model
from services.physics.pairing import SpeculationPair
from services.physics.roofline import prefill_ms
from services.physics.speculation import tokens_per_step
from services.worker.engine import EngineError, EngineStep, GenerationResult
from tests.support.examples import examples

PAIR = SpeculationPair(target=model("gemma-3-27b"), draft=model("gemma-3-4b"), gpu=gpu("h100"))


def cost_model(**changes):
    return CostModel(**{"pair": PAIR, "gamma": 4, "alpha": 0.8, "batch": 8, "budget": 2048, **changes})


def sequence(seed=0, *, prompt=100, length=20, script="", truncated=False, arrived_ms=0.0, batch=False):
    return SimulatedSequence(
        prompt=prompt,
        length=length,
        truncated=truncated,
        rng=random.Random(seed),
        script=parse_script(script),
        arrived_ms=arrived_ms,
        batch=batch,
    )


def run(scheduler, *, most_steps=10_000):
    """Run the scheduler until it is idle. Return the items of each sequence, by ``id``, and the end time in ms."""
    now, received = 0.0, {}
    for _ in range(most_steps):
        plan = scheduler.plan(now)
        if plan is None:
            wake = scheduler.wake_ms()
            if wake is None:
                break
            now = max(now, wake)
            continue
        now += plan.duration_ms
        for who, item in scheduler.complete(plan, now):
            received.setdefault(id(who), []).append(item)
    return received, now


@settings(max_examples=examples(60))
@given(
    st.lists(st.tuples(st.integers(1, 4_000), st.integers(1, 60)), min_size=1, max_size=20),
    st.integers(0, 6),
    st.floats(0, 1),
    st.integers(1, 8),
    st.integers(16, 4_096),
)
def test_every_answer_is_complete(shapes, gamma, alpha, batch, budget):
    scheduler = BatchScheduler(cost_model(gamma=gamma, alpha=alpha, batch=batch, budget=budget))
    sequences = [sequence(n, prompt=prompt, length=length) for n, (prompt, length) in enumerate(shapes)]
    for each in sequences:
        scheduler.add(each)
    received, _ = run(scheduler)
    assert (scheduler.running, scheduler.waiting) == (0, 0)
    for each in sequences:
        *told, done = received[id(each)]
        assert all(isinstance(item, EngineStep) for item in told)
        assert isinstance(done, GenerationResult)
        assert sum(item.tokens for item in told) == done.usage.completion_tokens == each.length
        assert len("".join(item.text for item in told).split()) == each.length
        assert all(item.tokens == item.accepted + 1 and item.accepted <= item.drafted <= gamma for item in told)
        assert min(done.timings.queue_ms, done.timings.prefill_ms, done.timings.decode_ms) >= 0
        drafted = sum(item.drafted for item in told)
        assert (done.speculation is None) == (drafted == 0)
        if done.speculation is not None:
            accepted = sum(item.accepted for item in told)
            assert done.speculation.accepted == accepted == sum(done.speculation.accepted_by_position)
            assert done.speculation.drafted == drafted


def test_one_alone_goes_at_the_pace_of_the_physics():
    scheduler = BatchScheduler(cost_model())
    alone = sequence(prompt=512, length=2_000)
    scheduler.add(alone)
    received, _ = run(scheduler)
    *told, done = received[id(alone)]
    assert done.timings.prefill_ms == pytest.approx(
        prefill_ms(PAIR.target, PAIR.gpu, "fp8", 512, efficiency=PAIR.achieved), rel=1e-6
    )
    assert len(told) == pytest.approx(2_000 / tokens_per_step(0.8, 4), rel=0.05)
    per_step = done.timings.decode_ms / (len(told) - 1)
    assert per_step == pytest.approx(PAIR.cycle_ms(4, context=1_500), rel=0.02)


def test_a_slower_machine_is_slower_by_its_scale():
    times = []
    for scale in (1.0, 10.0):
        scheduler = BatchScheduler(cost_model(scale=scale))
        scheduler.add(sequence())
        times.append(run(scheduler)[1])
    assert times[1] == pytest.approx(10 * times[0])


def test_a_long_prompt_is_read_in_parts_and_does_not_stop_the_others():
    scheduler = BatchScheduler(cost_model(budget=256))
    talking, long = sequence(1, prompt=10, length=50), sequence(2, prompt=2_560, length=5)
    scheduler.add(talking)
    scheduler.add(long)
    plans = []
    now = 0.0
    while (plan := scheduler.plan(now)) is not None:
        plans.append(plan)
        now += plan.duration_ms
        list(scheduler.complete(plan, now))
    reading = [plan for plan in plans if any(who is long for who, _ in plan.prefills)]
    assert len(reading) == 11, "256 at a time, after the first 10 of the other"
    assert all(sum(tokens for _, tokens in plan.prefills) <= 256 for plan in plans)
    assert sum(talking in plan.decodes for plan in reading) == 10


def test_a_full_batch_makes_the_next_wait():
    scheduler = BatchScheduler(cost_model(batch=2))
    sequences = [sequence(n) for n in range(3)]
    for each in sequences:
        scheduler.add(each)
    scheduler.plan(0.0)
    assert (scheduler.running, scheduler.waiting) == (2, 1)
    received, _ = run(scheduler)
    assert received[id(sequences[2])][-1].timings.queue_ms > 0


def test_the_unwanted_is_left_out_at_once():
    scheduler = BatchScheduler(cost_model())
    wanted, unwanted, waiting = sequence(1), sequence(2), sequence(3)
    scheduler.add(wanted)
    scheduler.add(unwanted)
    plan = scheduler.plan(0.0)
    scheduler.add(waiting)
    scheduler.remove(unwanted)
    scheduler.remove(waiting)
    assert {id(who) for who, _ in scheduler.complete(plan, 1.0)} == {id(wanted)}
    received, _ = run(scheduler)
    assert set(received) == {id(wanted)}
    scheduler.remove(wanted)


def test_the_same_seed_says_the_same_words():
    def words():
        scheduler = BatchScheduler(cost_model())
        scheduler.add(sequence(5))
        (items,) = run(scheduler)[0].values()
        return [item.text for item in items[:-1]]

    assert words() == words()


@pytest.mark.parametrize(
    ("script", "steps", "last"),
    [("die3", 3, "unavailable"), ("die0", 0, "unavailable"), ("dead2", 2, "engine_dead")],
)
def test_scripts_that_break_off(script, steps, last):
    scheduler = BatchScheduler(cost_model())
    scheduler.add(sequence(script=script))
    (items,) = run(scheduler)[0].values()
    assert len(items) == steps + 1
    assert isinstance(items[-1], EngineError)
    assert items[-1].error_class == last
    assert scheduler.running == 0


@pytest.mark.parametrize(("script", "steps"), [("mute", 0), ("stall4", 4), ("stall0", 0)])
def test_scripts_that_fall_silent(script, steps):
    scheduler = BatchScheduler(cost_model(gamma=0))
    silent, other = sequence(1, script=script), sequence(2)
    scheduler.add(silent)
    scheduler.add(other)
    received, _ = run(scheduler)
    assert len(received.get(id(silent), [])) == steps
    assert isinstance(received[id(other)][-1], GenerationResult), "the others go on"
    assert scheduler.running == 1, "it keeps its slot until it is cancelled"
    assert scheduler.wake_ms() is None
    scheduler.remove(silent)
    assert scheduler.running == 0


def test_scripts_that_delay():
    scheduler = BatchScheduler(cost_model())
    slow = sequence(script="slow250")
    scheduler.add(slow)
    received, _ = run(scheduler)
    assert received[id(slow)][-1].timings.prefill_ms > 250


def test_the_tail_is_heavy():
    rng = random.Random(1)
    delays = sorted(FaultScript(tail=40).delay_ms(rng) for _ in range(20_000))
    median = 40 * (2 ** (1 / 1.5) - 1)
    assert delays[10_000] == pytest.approx(median, rel=0.05)
    assert delays[19_800] > 15 * median
    assert all(math.isfinite(each) and each >= 0 for each in delays)


@pytest.mark.parametrize(
    ("script", "word"),
    [("poison7", "FORBIDDEN"), ("mail7", "anna.berg@example.org"), ("leak7", "Project"), ("leak5", "Heron")],
)
def test_a_scripted_word_is_at_its_position(script, word):
    scheduler = BatchScheduler(cost_model())
    scheduler.add(sequence(script=script))
    (items,) = run(scheduler)[0].values()
    assert "".join(item.text for item in items[:-1]).split()[7] == word


@pytest.mark.parametrize(("truncated", "reason"), [(True, "length"), (False, "stop")])
def test_finish_reason(truncated, reason):
    scheduler = BatchScheduler(cost_model())
    scheduler.add(sequence(truncated=truncated))
    (items,) = run(scheduler)[0].values()
    assert items[-1].finish_reason == reason


def test_a_script_that_refuses():
    assert scripted_refusal(FaultScript()) is None
    error = scripted_refusal(FaultScript(err=503))
    assert (error.error_class, error.retryable) == ("unavailable", True)


def test_scripts_are_read_in_any_order():
    assert parse_script("n50-die10-slow200") == parse_script("slow200-n50-die10") == FaultScript(n=50, die=10, slow=200)
    assert parse_script("") == FaultScript()
    assert parse_script("mute") == FaultScript(mute=0)


@pytest.mark.parametrize("text", ["n", "mute5", "fly3", "n-5", "n1.5", "die99999999", "N5"])
def test_a_script_that_is_not_understood(text):
    with pytest.raises(ValueError, match="is not a part of a script; the parts are dead, die, err"):
        parse_script(text)


@settings(max_examples=examples(60))
@given(
    st.lists(st.tuples(st.integers(1, 3_000), st.integers(1, 40), st.booleans(), st.integers(0, 3)), min_size=1),
    st.integers(1, 4),
)
def test_interactive_sequences_ignore_batch_and_batch_loses_no_token(arrivals, seats):
    """Every answer is complete, and no interactive sequence waits while a batch sequence has a seat."""
    scheduler = BatchScheduler(cost_model(batch=seats, budget=512))
    alive = [
        sequence(n, prompt=prompt, length=length, batch=batch)
        for n, (prompt, length, batch, _) in enumerate(arrivals)
    ]  # fmt: skip
    said, now = {id(each): [] for each in alive}, 0.0
    coming = list(zip(alive, (wait for *_, wait in arrivals), strict=True))
    left = 0
    for _ in range(20_000):
        while coming and left <= 0:
            each, left = coming.pop(0)
            scheduler.add(each)
        left -= 1
        plan = scheduler.plan(now)
        if plan is None:
            if not coming:
                break
            continue
        taking = [*plan.decodes, *(each for each, _ in plan.prefills)]
        assert scheduler.running <= seats
        if any(each.batch for each in scheduler._running.values()):
            assert not scheduler._waiting, "an interactive one waits while a batch one has a seat"
        first_batch = next((n for n, (each, _) in enumerate(plan.prefills) if each.batch), len(plan.prefills))
        assert not any(not each.batch for each, _ in plan.prefills[first_batch:]), taking
        now += plan.duration_ms
        for who, item in scheduler.complete(plan, now):
            said[id(who)].append(item)
    assert not scheduler.running
    assert not scheduler.waiting
    for each in alive:
        *steps, result = said[id(each)]
        assert isinstance(result, GenerationResult)
        assert sum(step.tokens for step in steps) == each.length == result.usage.completion_tokens


def test_the_newest_batch_sequence_is_displaced_and_goes_on_first():
    scheduler = BatchScheduler(cost_model(batch=2, gamma=0))
    old, new, next_one = (sequence(n, length=50, batch=True, script="slow100", arrived_ms=7.0) for n in range(3))
    for each in (old, new, next_one):
        scheduler.add(each)
    now = 50.0
    assert scheduler.plan(now) is None, "both are slow"
    now = 200.0
    for _ in range(4):
        plan = scheduler.plan(now)
        now += plan.duration_ms
        list(scheduler.complete(plan, now))
    generated = new.generated
    assert generated == old.generated > 0
    interactive = sequence(9, length=1)
    scheduler.add(interactive)
    plan = scheduler.plan(now)
    assert {id(each) for each in (*plan.decodes, *(who for who, _ in plan.prefills))} == {id(old), id(interactive)}
    now += plan.duration_ms
    list(scheduler.complete(plan, now))
    plan = scheduler.plan(now)
    assert [(id(who), tokens) for who, tokens in plan.prefills] == [(id(new), 100 + generated)], "at once, and whole"
    received, _ = run(scheduler)
    assert received[id(new)][-1].timings.queue_ms == 50.0 - 7.0
