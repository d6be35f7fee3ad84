"""Test properties that the formulas have for any input."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.physics.batches import BatchLimits, BatchWork, throughput
from services.physics.catalogue.configs import model_from_config
from services.physics.catalogue.gpus import GPUS, gpu
from services.physics.catalogue.models import MODELS, Model, model
from services.physics.deadlines import (
    chance_of_waiting_at_most,
    highest_utilisation,
    longest_prompt,
    mean_wait_ms,
    response_variation,
)
from services.physics.efficiency import FLOOR, practical
from services.physics.governance import exposure_tokens, governed_start, hidden_fraction
from services.physics.pairing import SpeculationPair
from services.physics.roofline import (
    attended_pairs,
    decode_ms,
    kv_bytes,
    largest_batch,
    prefill_flop,
    prefill_ms,
    require_fit,
    weight_bytes,
    weight_bytes_read,
)
from services.physics.speculation import (
    acceptance_from_tokens,
    best_gamma,
    budget_holds,
    speedup,
    tokens_per_step,
    tokens_per_step_by_position,
    tokens_per_step_spread,
)

alphas = st.floats(0, 1)
gammas = st.integers(0, 16)
costs = st.floats(0, 2)
models = st.sampled_from(sorted(MODELS.values(), key=lambda each: each.name))
gpus = st.sampled_from(sorted(GPUS.values(), key=lambda each: each.name))


@given(alphas, gammas)
def test_tau_is_the_sum_of_the_chances(alpha, gamma):
    assert tokens_per_step(alpha, gamma) == pytest.approx(sum(alpha**k for k in range(gamma + 1)))
    assert tokens_per_step(alpha, gamma) == pytest.approx(tokens_per_step_by_position([alpha] * gamma))
    assert 1 <= tokens_per_step(alpha, gamma) <= gamma + 1 + 1e-9


def test_tau_is_what_drawing_gives():
    draw = random.Random(7)
    alpha, gamma, runs = 0.8, 4, 40_000
    total = 0
    for _ in range(runs):
        accepted = 0
        while accepted < gamma and draw.random() < alpha:
            accepted += 1
        total += accepted + 1
    assert total / runs == pytest.approx(tokens_per_step(alpha, gamma), rel=0.01)


@given(alphas, gammas, costs)
def test_the_budget_is_speedup_above_one(alpha, gamma, cost):
    without_overhead = speedup(alpha, gamma, cost, overhead=0.0)
    if abs(without_overhead - 1) > 1e-9:
        assert budget_holds(cost, 1.0, gamma, alpha) == (without_overhead > 1)


@given(alphas, costs)
def test_the_best_gamma_is_never_worse_than_off(alpha, cost):
    gamma, bought = best_gamma(alpha, cost)
    assert bought >= 1
    assert (gamma == 0) == (bought == 1)


@given(st.floats(0.01, 0.99), st.integers(1, 16))
def test_acceptance_is_found_back(alpha, gamma):
    assert acceptance_from_tokens(tokens_per_step(alpha, gamma), gamma) == pytest.approx(alpha, abs=1e-6)


@given(st.floats(0.1, 0.9), st.floats(0, 0.25), st.integers(1, 8))
def test_spread_never_raises_tau(mean, deviation, gamma):
    assert tokens_per_step_spread(mean, deviation, gamma) <= tokens_per_step(mean, gamma) * 1.001


@given(models, st.integers(0, 9_000), st.integers(0, 9_000))
def test_kv_grows_and_never_faster_than_without_a_window(which, a, b):
    low, high = sorted((a, b))
    assert kv_bytes(which, low) <= kv_bytes(which, high)
    assert kv_bytes(which, high) <= high * 2 * which.layers * which.kv_heads * which.head_dim * 2


@given(models, st.integers(0, 4_000), st.integers(0, 4_000))
def test_prefill_in_two_parts_is_prefill_in_one(which, first, second):
    whole = prefill_flop(which, first + second)
    parts = prefill_flop(which, first) + prefill_flop(which, second, cached=first)
    one_head_more = 2 * which.head_parameters if first and second else 0
    assert parts == pytest.approx(whole + one_head_more, rel=1e-9)


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 200))
def test_pairs_are_counted_as_one_by_one(tokens, cached, window):
    counted = sum(min(i, window) for i in range(cached + 1, cached + tokens + 1))
    assert attended_pairs(tokens, cached, window) == pytest.approx(counted, abs=tokens / 2 + 1)


@given(models, gpus, st.integers(1, 64), st.integers(1, 8), st.integers(0, 4_000))
def test_no_engine_beats_the_floor(which, on, batch, positions, context):
    shape = {"batch": batch, "positions": positions, "context": context}
    floor = decode_ms(which, on, "fp8", efficiency=FLOOR, **shape)
    assert decode_ms(which, on, "fp8", efficiency=practical(on), **shape) > floor > 0
    assert floor >= weight_bytes_read(which, "fp8") / on.bandwidth * 1e3


@given(models, gpus)
def test_smaller_numbers_are_not_slower(which, on):
    steps = [decode_ms(which, on, precision) for precision in ("int4", "fp8", "bf16")]
    assert steps == sorted(steps)
    assert prefill_ms(which, on, "fp8", 512) <= prefill_ms(which, on, "bf16", 512)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gemma-3-12b", 11.77),
        ("gemma-3-1b", 1.0),
        ("gemma-3-270m", 0.268),
        ("smollm2-135m", 0.1345),
        ("gemma-2-2b", 2.61),
        ("gemma-2-9b", 9.24),
        ("llama-3-8b", 8.03),
        ("llama-3-70b", 70.55),
    ],
)
def test_parameters_are_the_published_ones(name, billions):
    assert model(name).parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_speculation_pays_at_one_and_not_for_ever():
    pair = SpeculationPair(target=model("gemma-3-27b"), draft=model("gemma-3-4b"), gpu=gpu("h100"))
    assert pair.speedup(0.8, 4) == pytest.approx(speedup(0.8, 4, pair.draft_cost()), rel=0.02)
    assert pair.speedup(0.8, 4) < speedup(0.8, 4, pair.draft_cost())  # verifying is not free
    last = pair.pays_until(0.8, 4)
    assert 8 < last < 512
    assert pair.speedup(0.8, 4, batch=last) > 1 >= pair.speedup(0.8, 4, batch=last + 1)
    assert pair.best_gamma(0.8, batch=1)[0] > pair.best_gamma(0.8, batch=64)[0]
    assert pair.best_gamma(0.05, batch=last) == (0, 1.0)
    assert SpeculationPair(target=pair.target, draft=pair.target, gpu=pair.gpu).pays_until(0.1, 4) == 0
    assert pair.pays_until(0.99, 1, max_batch=2) == 2
    assert pair.cycle_ms(0) == pair.step_ms()
    assert pair.cycle_ms(4) / (tokens_per_step(0.8, 4) * pair.step_ms()) == pytest.approx(1 / pair.speedup(0.8, 4))


@given(st.floats(0.05, 0.95), st.floats(0, 40))
def test_waiting_is_a_chance_that_grows_with_time(utilisation, services):
    earlier = chance_of_waiting_at_most(services * 10, 10, utilisation)
    later = chance_of_waiting_at_most(services * 10 + 5, 10, utilisation)
    assert 0 <= earlier <= later + 1e-12 <= 1 + 1e-12


def test_waiting_is_what_a_queue_shows():
    draw, utilisation, wait, waits = random.Random(3), 0.6, 0.0, []
    for _ in range(60_000):  # Lindley's recursion with service 1
        waits.append(wait)
        wait = max(0.0, wait + 1 - draw.expovariate(utilisation))
    for moment in (0.0, 1.0, 2.5):
        seen = sum(each <= moment for each in waits) / len(waits)
        assert chance_of_waiting_at_most(moment, 1, utilisation) == pytest.approx(seen, abs=0.02)


def test_waiting_has_pollaczeks_mean_and_kleinrocks_variance():
    draw, utilisation, wait, waits = random.Random(5), 0.5, 0.0, []
    for _ in range(120_000):
        waits.append(wait + 1)
        wait = max(0.0, wait + 1 - draw.expovariate(utilisation))
    mean = sum(waits) / len(waits)
    deviation = math.sqrt(sum((each - mean) ** 2 for each in waits) / len(waits))
    assert mean_wait_ms(1, utilisation) == pytest.approx(mean - 1, rel=0.03)
    assert response_variation(utilisation) == pytest.approx(deviation / mean, rel=0.03)
    assert response_variation(0.5) == pytest.approx(0.51, abs=0.005)
    assert response_variation(0) == mean_wait_ms(30, 0) == 0


def test_edges_of_waiting():
    assert chance_of_waiting_at_most(-1, 10, 0.5) == 0
    assert chance_of_waiting_at_most(0, 10, 0.5) == pytest.approx(0.5)
    assert chance_of_waiting_at_most(10_000, 10, 0.9) == 1
    assert highest_utilisation(10, 20) == 0
    assert longest_prompt(model("gemma-3-27b"), gpu("h100"), "fp8", 0) == 0
    assert longest_prompt(model("gemma-3-270m"), gpu("b200"), "fp8", 1e12) == 1_000_000_000


@given(st.floats(0, 1_000), st.floats(0, 1_000), st.floats(0, 1_000))
def test_overlap_hides_what_it_can(rail, queue, prefill):
    start = governed_start(rail_ms=rail, queue_ms=queue, prefill_ms=prefill, bus_ms=3)
    assert start.serial_ms - start.ttft_ms == pytest.approx(start.hidden_ms)
    assert start.ttft_ms >= rail
    assert 0 <= hidden_fraction(rail_ms=rail, queue_ms=queue, prefill_ms=prefill) <= 1


def test_rails_beside_a_prefill_of_512_tokens():
    assert hidden_fraction(rail_ms=20, queue_ms=0, prefill_ms=31) == 1
    assert hidden_fraction(rail_ms=189, queue_ms=0, prefill_ms=31) == pytest.approx(0.16, abs=0.005)
    assert hidden_fraction(rail_ms=0, queue_ms=0, prefill_ms=0) == 1


def test_exposure():
    assert exposure_tokens(tokens_per_second=120, check_ms=20, bus_ms=5, chunk_tokens=3) == pytest.approx(6)


def test_what_fits():
    big = model("gemma-3-27b")
    require_fit(big, gpu("h100"), "fp8", batch=8, context=4_096)
    with pytest.raises(ValueError, match=r"gemma-3-27b in bf16 needs 50\.3 GiB .* rtx-4080 has 16 GiB"):
        require_fit(big, gpu("rtx-4080"), "bf16")
    batch = largest_batch(big, gpu("h100"), "fp8", 2_048)
    require_fit(big, gpu("h100"), "fp8", batch=batch, context=2_048)
    assert largest_batch(big, gpu("rtx-4080"), "bf16", 2_048) == 0
    assert weight_bytes(model("llama-3-8b"), "bf16") > weight_bytes_read(model("llama-3-8b"), "bf16")


GEMMA3_CONFIG = {
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 5376, "intermediate_size": 21504, "num_attention_heads": 32, "num_hidden_layers": 62,
        "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024, "model_type": "gemma3_text",
    },
}  # fmt: skip
LLAMA_CONFIG = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128_256, "head_dim": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (GEMMA3_CONFIG, "gemma-3-27b"),
        (LLAMA_CONFIG, "llama-3-8b"),
        (
            {
                "model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8,
                "num_hidden_layers": 26, "num_key_value_heads": 4, "vocab_size": 256_000, "head_dim": 256,
                "layer_types": ["sliding_attention", "full_attention"] * 13,
            },
            "gemma-2-2b",
        ),
    ],
)  # fmt: skip
def test_a_published_configuration_gives_the_catalogue_entry(config, name):
    known = model(name)
    assert model_from_config(config, name=name, source=known.source) == known


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported; supported are gemma3"),
        ({}, "model_type None is not supported"),
        ({"model_type": "gemma3", "text_config": []}, "text_config must be an object"),
        ({**LLAMA_CONFIG, "hidden_size": "4096"}, "needs hidden_size as a whole number above 0, not '4096'"),
        ({**LLAMA_CONFIG, "num_hidden_layers": 0}, "needs num_hidden_layers"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        model_from_config(config, name="mine")


@pytest.mark.parametrize(
    ("nonsense", "message"),
    [
        (lambda: tokens_per_step(1.1, 3), "alpha must be between 0 and 1, not 1.1"),
        (lambda: tokens_per_step(math.nan, 3), "alpha must be between 0 and 1"),
        (lambda: tokens_per_step(0.5, -1), "gamma must be a whole number of at least 0, not -1"),
        (lambda: tokens_per_step(0.5, 1.5), "gamma must be a whole number"),
        (lambda: speedup(0.5, 2, -0.1), "draft_cost must be a number of at least 0"),
        (lambda: speedup(0.5, 2, math.inf), "draft_cost must be a number"),
        (lambda: tokens_per_step_spread(0.5, 0.6, 4), "deviation must be below 0.5 when the mean is 0.5"),
        (lambda: acceptance_from_tokens(6, 4), "tokens per step must be within 1 and 5"),
        (lambda: gpu("h900"), "GPU 'h900' is not in the catalogue; it has rtx-4080"),
        (lambda: model("gemma-9"), "model 'gemma-9' is not in the catalogue; it has gemma-3-4b"),
        (lambda: weight_bytes(model("gemma-3-4b"), "fp4"), "precision 'fp4' is not known; known are bf16, fp8, int8"),
        (lambda: decode_ms(model("gemma-3-4b"), gpu("h100"), "fp8", batch=0), "batch must be a whole number of at"),
        (lambda: replace(FLOOR, flops=1.2), "efficiency of flops must be above 0 and at most 1, not 1.2"),
        (lambda: chance_of_waiting_at_most(1, 1, 1.0), "utilisation must be at least 0 and below 1"),
        (lambda: mean_wait_ms(1, 1.0), "utilisation must be at least 0 and below 1"),
        (lambda: chance_of_waiting_at_most(1, 0, 0.5), "service_ms must be a number above 0"),
        (lambda: governed_start(rail_ms=-1, queue_ms=0, prefill_ms=0), "rail_ms must be a number of at least 0"),
        (lambda: _odd(layers=0), "odd: layers must be at least 1"),
        (lambda: _odd(global_layers=9), "global_layers must be within 0 and 2"),
        (lambda: _odd(global_layers=1), "1 local layers need a window"),
    ],
)
def test_nonsense_is_refused_by_name(nonsense, message):
    with pytest.raises(ValueError, match=message):
        nonsense()


def _odd(**changes):
    shape = {
        "name": "odd", "layers": 2, "global_layers": 2, "window": None, "hidden": 8, "intermediate": 8, "heads": 1,
        "kv_heads": 1, "head_dim": 8, "vocab": 8, "tied": True, "source": "-",
    }  # fmt: skip
    return Model(**{**shape, **changes})


@pytest.mark.parametrize(
    ("mean", "deviation", "gamma"), [(0.7, 0.2, 4), (0.1, 0.25, 1), (0.9, 0.05, 16), (0.5, 0.01, 3)]
)
def test_spread_is_what_drawing_gives(mean, deviation, gamma):
    draw, strength = random.Random(5), mean * (1 - mean) / deviation**2 - 1
    drawn = [draw.betavariate(mean * strength, (1 - mean) * strength) for _ in range(20_000)]
    harmonic = len(drawn) / sum(1 / tokens_per_step(alpha, gamma) for alpha in drawn)
    assert tokens_per_step_spread(mean, deviation, gamma) == pytest.approx(harmonic, rel=0.02)


def test_a_batch_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"gemma-3-27b in bf16 needs 50\.3 GiB"):
        throughput(model("gemma-3-27b"), gpu("a100-40"), "bf16", BatchWork(requests=1, shared=0, own=1, output=1))
    long = BatchWork(requests=1, shared=0, own=200_000, output=1)
    with pytest.raises(ValueError, match="leaves no room for a sequence of 200001 tokens on h100"):
        throughput(model("llama-3-70b"), gpu("h100"), "fp8", long, limits=BatchLimits(memory=0.95))
    with pytest.raises(ValueError, match="own must be a whole number of at least 1"):
        BatchWork(requests=1, shared=0, own=0, output=1)


@given(models, st.integers(1, 3_000), st.integers(1, 500), st.integers(1, 300))
def test_a_cached_beginning_is_never_slower(which, shared, own, output):
    def hours(**more):
        return throughput(
            which, gpu("b200"), "int4", BatchWork(requests=9, shared=shared, own=own, output=output, **more)
        )

    assert hours().prefill_s <= hours(prefix_cached=False).prefill_s
    assert hours().per_second >= hours(prefix_cached=False).per_second
