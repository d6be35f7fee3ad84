"""Test that the predictions agree with every published measurement."""

import pytest

from services.physics.catalogue.gpus import GPUS, gpu
from services.physics.catalogue.models import Model, model
from services.physics.efficiency import COMMON, GENERATIONS, SEQUENCE_US, practical
from services.physics.pairing import SpeculationPair
from services.physics.roofline import FLOOR, decode_ms, prefill_ms, require_fit
from services.physics.statistics import median
from tests.bench.published import groups, held, rows

ROWS = rows()
WORST = 0.35


@pytest.mark.parametrize("each", held(ROWS), ids=lambda each: f"{each.row.source}-{each.row.gpu.name}")
def test_a_row_is_met(each):
    assert abs(each.first) <= WORST
    assert abs(each.token) <= WORST


@pytest.mark.parametrize(("what", "bar"), [("decode alone", 0.10), ("decode batched", 0.12), ("prefill", 0.12)])
@pytest.mark.parametrize("source", ["T", "N", "TN"])
def test_the_median_error(source, what, bar):
    errors = groups(held([row for row in ROWS if row.source in source]))[what]
    assert median(errors) <= bar


def test_every_row_is_there():
    assert len(ROWS) == 85
    assert {row.source for row in ROWS} == {"T", "N"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.source}-{row.gpu.name}")
def test_no_row_beats_the_floor(row):
    """No measured time is below the theoretical minimum."""
    where = (row.model, row.gpu, row.precision)
    assert row.tpot_ms > decode_ms(*where, batch=row.batch, context=row.prompt, kv=row.kv, efficiency=FLOOR)
    if row.source == "T":
        assert row.ttft_ms > prefill_ms(*where, row.prompt, prompts=row.batch, efficiency=FLOOR)


LLAMA_34B = Model(
    name="codellama-34b", layers=48, global_layers=48, window=None, hidden=8192, intermediate=22016, heads=64,
    kv_heads=8, head_dim=128, vocab=32_000, tied=False, source="config.json of codellama/CodeLlama-34b-hf",
)  # fmt: skip


@pytest.mark.parametrize(
    ("target", "draft", "on", "precision", "measured"),
    [
        ("llama-2-70b", "llama-2-7b", "h100", "fp8", 0.15),
        ("llama-2-7b", "tinyllama-1.1b", "h100", "bf16", 0.30),
    ],
)
def test_what_a_draft_step_costs(target, draft, on, precision, measured):
    pair = SpeculationPair(target=model(target), draft=model(draft), gpu=gpu(on), precision=precision)
    assert pair.draft_cost() == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(("tokens", "measured"), [(4, 1.28), (8, 1.72)])
def test_verifying_is_not_free(tokens, measured):
    """A step that verifies several tokens takes longer than a step for one token.

    ``measured`` is the ratio of the two times, measured with llama.cpp on an A100, for a 34B model in Q8_0. The formula
    computes Q8_0 as FP8, which has about the same size.
    """
    constants = practical(gpu("a100-80"), "llama.cpp")
    plain, verify = (
        decode_ms(LLAMA_34B, gpu("a100-80"), "fp8", positions=positions, efficiency=constants)
        for positions in (1, tokens)
    )
    assert verify / plain == pytest.approx(measured, rel=0.1)


def test_smaller_numbers_buy_what_was_measured():
    def step(on, precision):
        return decode_ms(model("llama-3-8b"), gpu(on), precision, efficiency=practical(gpu(on)))

    assert step("h100", "bf16") / step("h100", "fp8") == pytest.approx(1.42, rel=0.1)
    assert step("a100-80", "bf16") / step("a100-80", "int4") == pytest.approx(1.76, rel=0.1)


def test_a_refitted_draft_cost_chooses_a_shorter_draft():
    pair = SpeculationPair(target=model("gemma-3-27b"), draft=model("gemma-3-4b"), gpu=gpu("h100"))
    gamma, speedup = pair.best_gamma(0.8)
    assert gamma == 3
    assert speedup == pytest.approx(1.57, rel=0.03)


def test_8b_in_16_bits_fits_into_16_gib():
    require_fit(model("llama-3-8b"), gpu("rtx-4080"), "bf16", batch=1, context=1_024)


def test_each_constant_is_within_its_interval_and_has_a_source():
    constants = [*COMMON.values(), *SEQUENCE_US.values(), *(c for each in GENERATIONS.values() for c in each.values())]
    for each in constants:
        assert each.low <= each.value <= each.high
        assert each.source
    for each in GPUS.values():
        assert practical(each).layer_us == GENERATIONS[each.generation]["layer_us"].value
    with pytest.raises(ValueError, match="engine 'vllm9' is not known; known are vllm, nim"):
        practical(gpu("h100"), "vllm9")
