"""Test that changes with a simulated gain are kept, and that changes without a gain or with a loss are not."""

import random
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.tuner.decide import decide, gain_is_shown, percent
from services.tuner.experiment import Rules, SettingsChange, parse_target
from services.tuner.measurements import Load, RequestRow, Round, failed, gain, stability, token_gaps, values
from services.tuner.quality.compare import Answers, TextScore, compare
from services.tuner.run import laboratory
from services.tuner.run.engine_process import EngineProcessError
from services.tuner.run.laboratory import Laboratory, Shape
from tests.support.examples import examples
from tests.unit.tuner.simulated_loads import CHANGE, load, rounds, trial

seeds = st.integers(0, 10**6)


def test_no_planted_change_without_a_gain_is_kept():
    rng = random.Random(11)
    kept = [decide(trial(rng, count=4), Rules()).kept for _ in range(60)]
    kept += [decide(trial(rng, count=8, stall=0.02), Rules()).kept for _ in range(60)]
    assert sum(kept) == 0


def test_noise_alone_passes_less_often_than_the_confidence_says():
    """For a change without effect, the whole confidence interval of the gain is above 0 in at most 2 % of the trials.

    With a confidence of 99 %, 1 % of the intervals are expected not to contain 0. Half of these, 0.5 %, are above 0.
    """
    rng = random.Random(12)
    shown = sum(gain_is_shown(rounds(rng, 5), Rules(margin=0.0)) for _ in range(200))
    assert shown / 200 <= 0.02


@settings(max_examples=examples(40))
@given(seeds, st.floats(0.5, 0.75), st.integers(6, 10))
def test_a_planted_gain_is_found(seed, effect, count):
    found = decide(trial(random.Random(seed), count=count, effect=effect), Rules())
    assert found.outcome == "kept"
    gained = found.gains["answer_p50_ms"]
    assert gained.low - 0.05 <= 1 - effect <= gained.high + 0.05


@settings(max_examples=examples(40))
@given(seeds, st.floats(1.4, 2.0), st.integers(6, 10))
def test_a_planted_loss_is_worse(seed, effect, count):
    assert decide(trial(random.Random(seed), count=count, effect=effect), Rules()).outcome == "worse"


@settings(max_examples=examples(40))
@given(seeds, st.floats(0.3, 3.0))
def test_one_round_alone_keeps_nothing(seed, effect):
    assert not decide(trial(random.Random(seed), count=1, effect=effect), Rules()).kept


def test_a_gain_below_the_margin_is_not_kept():
    rng = random.Random(5)
    about = {"effect": 0.97, "process": 0.0005, "drift": 0.001}
    assert decide(trial(rng, count=16, **about), Rules(margin=0.01)).outcome == "kept"
    found = decide(trial(rng, count=16, **about), Rules(margin=0.05))
    assert found.outcome == "no gain"
    assert "margin of 5%" in found.reason


def paid_by_the_first_token():
    """Return a trial of a change that makes answers end earlier, but delays their first tokens by about 50 ms."""

    def arm(first_ms, gap_ms):
        rows = tuple(
            RequestRow(steps=tuple((first_ms + gap_ms * step + each * 0.01, 1) for step in range(8)), total_ms=9.0)
            for each in range(20)
        )
        rows = tuple(RequestRow(steps=row.steps, total_ms=row.steps[-1][0]) for row in rows)
        return Load(requests=rows, wall_s=sum(row.total_ms for row in rows) / 1e3)

    each = Round(before=(arm(10, 20), arm(10, 20.1)), after=(arm(60, 5), arm(61, 5)))
    slightly = Round(before=(arm(10, 20), arm(10, 20.2)), after=(arm(62, 5), arm(61, 5)))
    one = trial(random.Random(1))
    return type(one)(change=CHANGE, base={}, size=one.size, rounds=(each, slightly, each, slightly))


def test_a_gain_that_another_metric_pays_for_is_not_kept():
    found = decide(paid_by_the_first_token(), Rules())
    assert found.outcome == "price"
    assert "first token, p99" in found.reason


@pytest.mark.parametrize(
    ("limit", "outcome"),
    [("first_token_p99_ms=100", "kept"), ("first_token_p99_ms=40", "price"), ("token_p99_ms=100", "price")],
)
def test_what_another_metric_may_pay_is_the_users_to_say(limit, outcome):
    found = decide(paid_by_the_first_token(), Rules(accepted=[parse_target(limit)]))
    assert found.outcome == outcome
    assert ("within the accepted 100" in found.reason) == (outcome == "kept")


def test_failing_requests_forbid_a_change():
    good = rounds(random.Random(2), 4, effect=0.5)
    bad = RequestRow(steps=(), total_ms=1.0, error="timeout: not finished")
    broken = tuple(
        Round(before=each.before, after=(Load(requests=(*each.after[0].requests, bad), wall_s=1.0), each.after[1]))
        for each in good
    )
    one = trial(random.Random(2))
    found = decide(type(one)(change=CHANGE, base={}, size=one.size, rounds=broken), Rules())
    assert found.outcome == "failed"
    assert found.reason == "4 more requests failed than without it"
    assert failed(broken[0].after) == 1


def test_what_cannot_start_is_not_kept():
    one = trial(random.Random(2))
    found = decide(type(one)(change=CHANGE, base={}, size=one.size, error="engine vllm: no GPU"), Rules())
    assert (found.outcome, found.reason) == ("failed", "engine vllm: no GPU")


RIGHT = tuple(str(number) for number in range(40))
SURE = tuple(TextScore(nats=100.0 + number, tokens=50) for number in range(12))


def answers(wrong=0, scores=SURE):
    return Answers(
        texts=tuple("no" if at < wrong else f"It is {each}." for at, each in enumerate(RIGHT)), scores=scores
    )


def decided(after, *, lossy, rules=None):
    quality = compare(answers(), answers(), after, RIGHT)
    change = SettingsChange(name="planted", settings={"RAILBUS_X": "1"}, item="quantization", lossy=lossy)
    return decide(trial(random.Random(9), effect=0.5, change=change, quality=quality), rules or Rules())


def scaled(by):
    return tuple(TextScore(nats=each.nats * by, tokens=each.tokens) for each in SURE)


def test_a_lossy_change_whose_loss_is_small_is_kept():
    assert decided(answers(scores=scaled(1.001)), lossy=True).kept


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (answers(wrong=12), "fewer tasks"),
        (answers(scores=scaled(1.05)), "perplexity rises"),
        (answers(scores=None), "there is no perplexity"),
    ],
)
def test_a_lossy_change_whose_loss_is_shown_or_not_ruled_out_is_not_kept(after, said):
    found = decided(after, lossy=True)
    assert found.outcome == "quality"
    assert said in found.reason


def test_a_loss_that_was_allowed_is_kept():
    assert decided(answers(scores=scaled(1.02)), lossy=True, rules=Rules(max_loss=0.2)).kept


def test_a_change_said_to_be_lossless_that_changes_answers_is_found_out():
    found = decided(answers(wrong=20), lossy=False)
    assert found.outcome == "quality"
    assert "though it is said to be lossless" in found.reason


def test_a_lossless_change_is_not_blamed_for_the_engines_own_noise():
    noisy = answers(wrong=20)
    quality = compare(answers(), noisy, noisy, RIGHT)
    assert quality.objection(lossy=False, rules=Rules()) == ""


def test_a_lossy_change_whose_answers_were_not_measured_is_not_kept():
    change = SettingsChange(name="planted", settings={"RAILBUS_X": "1"}, item="quantization", lossy=True)
    assert decide(trial(random.Random(9), effect=0.5, change=change), Rules()).outcome == "quality"


class DeadEngine:
    async def load(self, *_, **__):
        raise EngineProcessError("it was ended by signal 9")


@asynccontextmanager
async def dead_engine(_):
    yield DeadEngine()


@pytest.mark.parametrize("lossy", [False, True])
async def test_a_change_whose_engine_fails_while_it_answers_is_not_kept(monkeypatch, lossy):
    monkeypatch.setattr(laboratory, "engine_process", dead_engine)
    measured = trial(random.Random(9), effect=0.5, change=replace(CHANGE, lossy=lossy))
    of_a_model = await Laboratory(Shape()).with_quality(replace(measured, base={"RAILBUS_ENGINE": "llama"}))
    found = decide(of_a_model, Rules())
    assert found.outcome == "quality"
    assert "an engine failed when answers were compared: it was ended by signal 9" in found.reason
    simulated = await Laboratory(Shape()).with_quality(replace(measured, base={"RAILBUS_ENGINE": "simulated"}))
    assert decide(simulated, Rules()).kept is not lossy


def test_the_gain_of_a_single_round_has_no_interval():
    found = gain(rounds(random.Random(3), 1, effect=0.5), "answer_p50_ms", 0.99)
    assert percent(found) == f"{found.value:+.1%} (one round has no interval)"


def test_metrics_of_a_known_load():
    rows = (
        RequestRow(steps=((10.0, 1), (20.0, 2), (25.0, 1)), total_ms=25.0),
        RequestRow(steps=((30.0, 1), (40.0, 1)), total_ms=41.0),
        RequestRow(steps=(), total_ms=99.0, error="internal: x"),
    )
    found = values([Load(requests=rows, wall_s=2.0, memory_mib=10.0), Load(requests=(), wall_s=1.0, memory_mib=12.0)])
    assert found["first_token_p50_ms"] == 20.0
    assert token_gaps(rows) == [5.0, 5.0, 10.0]
    assert found["answer_p50_ms"] == 33.0
    assert found["tokens_per_s"] == 2.0
    assert found["memory_mib"] == 12.0
    assert values([]) == {}


def test_gain_of_throughput_is_turned_round():
    slow, fast = load(random.Random(1), factor=2.0, noise=0.0), load(random.Random(1), factor=1.0, noise=0.0)
    two = [Round(before=(slow, slow), after=(fast, fast))] * 2
    assert gain(two, "tokens_per_s", 0.95).value == pytest.approx(0.5)
    assert gain(two, "answer_p50_ms", 0.95).value == pytest.approx(0.5)


def test_stability_is_between_loads_and_within():
    rng = random.Random(4)
    between, tail = stability([load(rng, factor=factor, noise=0.0) for factor in (1.0, 1.0, 1.2)])
    assert between == pytest.approx(0.1083, abs=1e-3)
    assert tail == pytest.approx(1.2, rel=0.01)
