"""Test the batch plan: its ways, their uncertainty, the Pareto front, and the choice of the fastest and cheapest way.

Also test the message about a model that does not fit.
"""

import json
import re
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.physics.batches import BatchWork
from services.physics.catalogue.gpus import gpu
from services.physics.catalogue.models import model
from services.planner.__main__ import main
from services.planner.batch.choose import answers, good_enough, hours_text, money_text, pareto_front
from services.planner.batch.hardware import Deployment, estimate, what_would_fit
from services.planner.batch.offers import limit_per_second, offers, token_money
from services.planner.batch.plan import plan_batch
from services.planner.batch.prices import ApiOffer, default_text, read_prices
from services.planner.batch.ways import BatchJob, Range, Way, exactly, spread
from services.runtime.errors import UserError
from tests.support.examples import examples

WORK = BatchWork(requests=200_000, shared=2_400, own=600, output=300)
JOB = BatchJob(
    work=WORK, model=model("gemma-3-12b"), gpu=gpu("rtx-4080"),
    smaller=(model("gemma-2-9b"), model("gemma-2-2b")), draft=model("gemma-3-1b"),
)  # fmt: skip


@cache
def planned(job=JOB):
    return plan_batch(job, read_prices(None))


def told(capsys, *flags):
    code = main(["batch", *flags])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_every_kind_of_way_is_there_with_an_interval():
    ways = planned().ways
    assert {way.kind for way in ways} == {
        "local", "less work", "smaller model", "several GPUs", "rented", "API", "cascade"
    }  # fmt: skip
    assert len({way.name for way in ways}) == len(ways) > 50
    for way in ways:
        for each in (way.hours, way.money):
            assert 0 < each.low <= each.value <= each.high
        assert way.per_second > 0
        assert way.quality
        assert way.why
    for way in ways:
        if way.kind in {"local", "less work", "rented"}:
            assert 1.1 < way.hours.high / way.hours.low < 2.5


def test_the_answers_change_with_the_question(capsys):
    wanted = read_prices(None).scores["gemma-3-12b"]
    ways = good_enough(planned().ways, JOB, wanted)
    assert 0 < len(ways) < len(planned().ways)
    fastest, cheapest, within, best = answers(ways, within_h=5, budget=50)
    assert fastest.way.hours.value == min(way.hours.value for way in ways)
    assert cheapest.way.money.value == min(way.money.value for way in ways)
    assert within.way.hours.high <= 5
    assert all(way.money.value >= within.way.money.value for way in ways if way.hours.high <= 5)
    assert best.way.money.high <= 50
    assert all(way.score <= best.way.score for way in ways if way.money.high <= 50)
    (nothing,) = (each for each in answers(ways, within_h=0.001) if each.question.startswith("cheapest within"))
    assert nothing.way is None
    assert "none is sure to" in nothing.why
    assert "none with a known score" in answers(ways, budget=0.001)[-1].why
    assert all(each.way is None for each in answers([], within_h=1, budget=1))


def test_a_better_model_is_asked_for_when_less_loss_is_allowed():
    ways, wanted = planned().ways, read_prices(None).scores["gemma-3-12b"]
    strict = answers(good_enough(ways, replace(JOB, quality_loss=0.5), wanted))[1]
    loose = answers(good_enough(ways, replace(JOB, quality_loss=40), wanted))[1]
    assert strict.way.score > loose.way.score
    assert strict.way.money.value > loose.way.money.value
    assert list(ways) == good_enough(ways, JOB, None)


def _way(hours, money):
    return Way(
        name=f"{hours} {money}", kind="local", hours=exactly(hours), money=exactly(money), per_second=1, score=1,
        quality="", complexity="low", why="",
    )  # fmt: skip


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=1, max_size=30))
def test_the_front_is_what_nothing_beats(points):
    ways = [_way(*point) for point in points]
    front = pareto_front(ways)
    for way in ways:
        beaten = any(
            each.hours.value <= way.hours.value and each.money.value <= way.money.value
            and (each.hours.value, each.money.value) != (way.hours.value, way.money.value)
            for each in ways
        )  # fmt: skip
        on_front = (way.hours.value, way.money.value) in {(each.hours.value, each.money.value) for each in front}
        assert on_front != beaten


@given(st.floats(0.01, 1e4), st.lists(st.tuples(st.floats(0.5, 2), st.floats(0.5, 2)), max_size=8))
def test_an_interval_holds_its_value_and_every_cause(value, factors):
    found = spread(value, [(value * low, value * high) for low, high in factors])
    assert found.low < value < found.high
    for pair in factors:
        assert found.low <= value * min(pair) * (1 + 1e-9)
        assert value * max(pair) <= found.high * (1 + 1e-9)


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(1, 10**6), st.integers(0, 4_000), st.integers(1, 2_000), st.integers(1, 1_000))
def test_more_work_never_takes_less_time(requests, shared, own, output):
    deployment = Deployment(model=model("gemma-2-2b"), gpu=gpu("l4"), precision="fp8")
    work = BatchWork(requests=requests, shared=shared, own=own, output=output)
    usual = estimate(deployment, work).hours
    assert usual.low < usual.value < usual.high
    assert estimate(deployment, replace(work, requests=requests + 1)).hours.value >= usual.value * 0.99
    assert estimate(deployment, replace(work, output=output + 50)).hours.value > usual.value
    assert estimate(deployment, replace(work, prefix_cached=False)).hours.value >= usual.value * 0.999


def test_what_does_not_fit_is_refused_and_says_what_would(capsys):
    (refused,) = planned().refusals
    assert refused.name == "gemma-3-12b, bf16, vllm"
    assert "needs 21.9 GiB" in refused.reason
    assert refused.remedy == "on rtx-4080 it fits in fp8, int8, int4, q4_k_m, q3_k_s, q2_k"
    assert what_would_fit(model("llama-3-70b"), gpu("rtx-4080"), WORK) == (
        "in int4 it fits on a100-80, h100, h200, b200; or on 4 x rtx-4080 (tensor parallel)"
    )
    code, out, _ = told(capsys, "--model", "llama-3-70b", "--smaller", "none", "--draft", "llama-3-8b")
    assert code == 0
    assert "does not fit:" in out
    assert "4 x rtx-4080, int4, tensor 4" in out
    assert re.search(r"2 x h100 rented, fp8, tensor 2|1 x h100 rented, int4", out)


def test_hardware_that_is_missing_is_bought_and_energy_is_paid():
    by_name = {way.name: way for way in planned().ways}
    one, four = by_name["gemma-3-12b, int4, vllm"], by_name["4 x rtx-4080, int4, data 4"]
    assert one.money.value == pytest.approx(one.hours.value * 0.320 * 0.20)
    assert four.money.value == pytest.approx(3 * 1_200 + four.hours.value * 4 * 0.320 * 0.20)
    rented = by_name["8 x h100 rented, fp8, data 8"]
    assert rented.money.value == pytest.approx(rented.hours.value * 8 * 2.69)
    assert rented.money.high > rented.hours.value * 8 * 2.69


def test_wider_kv_caches_leave_room_for_fewer_answers():
    by_name = {way.name: way for way in planned().ways}
    usual, wide = by_name["gemma-3-12b, int4, vllm"], by_name["gemma-3-12b, int4, KV in bf16"]
    assert wide.hours.value > 1.2 * usual.hours.value
    work = replace(WORK, requests=1_000)
    ampere = Deployment(model=model("gemma-3-12b"), gpu=gpu("a100-40"), precision="int8")
    assert estimate(replace(ampere, kv="fp8"), work).hours.value < estimate(ampere, work).hours.value


def test_a_cascade_of_different_hardware_takes_as_long_as_its_slower_part():
    by_name = {way.name: way for way in planned().ways}
    screen = by_name["gemma-2-2b, int8"]
    together = by_name["gemma-2-2b, int8, then gpt-4o-mini, tier 5"]
    after = by_name["gemma-2-2b, int8, then gemma-3-12b"]
    assert together.hours == screen.hours
    assert after.hours.value == pytest.approx(
        screen.hours.value + by_name["gemma-3-12b, int4, vllm"].hours.value / 10, rel=0.01
    )
    three = by_name["gemma-2-2b, int8, then gemma-2-9b, int4, then gemma-3-12b"]
    parts = [(screen, 1), (by_name["gemma-2-9b, int4"], 0.25), (by_name["gemma-3-12b, int4, vllm"], 0.05)]
    assert three.hours.value == pytest.approx(sum(way.hours.value * share for way, share in parts), rel=0.01)
    assert screen.score < together.score < 82
    assert "keeps 92% of the best 1% at rho 0.8" in together.quality


API = ApiOffer(
    name="a", model="m", input=1.0, output=4.0, cached_input=0.5, requests_per_minute=600,
    tokens_per_minute=3_300_000, batch_discount=0.5, queue_tokens=330_000_000, source="test",
)  # fmt: skip


def test_the_smallest_limit_counts_and_no_discount_counts_twice():
    assert limit_per_second(API, WORK) == (10, "600 requests a minute")
    assert token_money(API, WORK) == Range(840 - 120, 840 - 240, 840)
    usual, lane = offers(API, WORK, 1.0)
    assert usual.hours.low == pytest.approx(200_000 / 10 / 3_600)
    assert usual.hours.high == 2 * usual.hours.low
    assert lane.money.value == pytest.approx(840 / 2)
    assert lane.hours.value == 2 * 24
    assert "2 times" in lane.why
    alone = list(offers(ApiOffer(**{**_fields(API), "batch_discount": None, "cached_input": None}), WORK, None))
    assert len(alone) == 1
    assert alone[0].money.low == alone[0].money.high


def _fields(api):
    return {name: getattr(api, name) for name in api.__struct_fields__}


def test_the_json_has_the_ways_the_front_and_the_answers(capsys):
    code, out, _ = told(capsys, "--json", "--within", "90m", "--requests", "1000", "--gpu", "none", "--smaller", "none")
    found = json.loads(out)
    assert code == 0
    assert {way["kind"] for way in found["ways"]} == {"rented", "API"}
    assert set(found["front"]) <= {way["name"] for way in found["ways"]}
    assert [each["question"] for each in found["answers"]] == ["fastest", "cheapest", "cheapest within 90 min"]
    assert found["question"]["work"]["requests"] == 1_000


def test_the_spelling_of_the_model_does_not_change_the_answers(capsys):
    flags = ("--requests", "1000", "--gpu", "none", "--smaller", "none", "--quality-loss", "0.5", "--json")
    usual, capitals = (json.loads(told(capsys, "--model", name, *flags)[1]) for name in ("gemma-3-12b", "Gemma-3-12B"))
    assert capitals["answers"] == usual["answers"]


def test_the_table_has_every_way_and_marks_the_front(capsys):
    code, out, _ = told(capsys, "--within", "5h", "--budget", "50")
    assert code == 0
    front = {way.name for way in pareto_front(planned().ways)}
    for way in planned().ways:
        (line,) = (line for line in out.splitlines() if line[2:].startswith(f"{way.name} "))
        assert line.startswith("*") == (way.name in front)
    assert "cheapest within 5.0 h: " in out
    assert "best within $50.00: " in out
    assert "needs RAILBUS_VLLM_MAX_SEQS=N+1 (default: 64) and RAILBUS_GENERATOR_BATCH_SLOTS=N" in out


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--gpu", "rtx-9999"), "is not in the catalogue"),
        (("--gpu", "h200"), "no [[owned]] entry for h200"),
        (("--within", "soon"), "give a time such as 5h"),
        (("--budget", "0"), "give an amount above 0"),
        (("--requests", "0"), "requests must be a whole number of at least 1"),
        (("--rho", "2"), "rho must be between 0 and 1"),
        (("--refine", "0"), "refined must be above 0"),
        (("--best", "1e-300"), "best must be above 0"),
        (("--requests", "9" * 30), "requests must be at most 1,000,000,000"),
        (("--shared", "9" * 400), "shared must be at most 1,000,000,000"),
        (("--model", "9" * 400), "File name too long"),
        (("--gpus", "x"), "give whole numbers"),
        (("--draft", "gemma-3-27b"), "is not smaller than gemma-3-12b"),
        (("--prices", "nowhere.toml"), "cannot be read"),
    ],
)
def test_a_mistake_gets_one_sentence(capsys, flags, sentence):
    code, _, err = told(capsys, *flags)
    assert code == 2
    assert sentence in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("per_hour = 0.80", "per_hour = -1", "Expected `float` > 0"),
        ("per_hour = 0.80", "per_hour = 9", "l4: per_hour must be within low and high"),
        ('gpu = "l4"\nper_hour', 'gpu = "l5"\nper_hour', "'l5' is not in the catalogue"),
        ("requests_per_minute = 500\n", "", "missing required field `requests_per_minute`"),
        ("requests_per_minute = 500\n", "requests_per_hour = 500\n", "requests_per_hour"),
        ("[energy]", "[energy", "is not TOML"),
    ],
)
def test_a_mistake_in_the_prices_is_named(tmp_path, old, new, sentence):
    assert old in default_text()
    path = tmp_path / "mine.toml"
    path.write_text(default_text().replace(old, new, 1))
    with pytest.raises(UserError, match=re.escape(sentence)):
        read_prices(path)


def test_edited_prices_change_the_plan(capsys, tmp_path):
    path = tmp_path / "mine.toml"
    code, text, _ = told(capsys, "--show-prices")
    path.write_text(text.replace("per_kwh = 0.20", "per_kwh = 0.40"))
    assert code == 0
    twice = plan_batch(JOB, read_prices(path)).ways[0]
    assert twice.money.value == pytest.approx(2 * planned().ways[0].money.value)


def test_times_and_money_read_as_people_write_them():
    assert [hours_text(hours) for hours in (0.5, 1.99, 2, 71.9, 96)] == [
        "30 min",
        "119 min",
        "2.0 h",
        "71.9 h",
        "4.0 d",
    ]
    sums = [money_text(money) for money in (0, 0.0123, 0.5, 99.99, 1234.5)]
    assert sums == ["$0.00", "$0.012", "$0.50", "$99.99", "$1,234"]


def test_a_small_model_needs_no_smaller_ones(capsys):
    code, out, _ = told(capsys, "--model", "smollm2-135m")
    assert code == 0
    assert "smaller model:" not in out
    assert "drafted" not in out
