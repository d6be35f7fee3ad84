"""Test how the number of drafted tokens is chosen for each batch size.

Drafting is on only where it saves time, and never above the largest measured batch size.
"""

from hypothesis import given
from hypothesis import strategies as st

from services.generator.engines.vllm.settings import VllmSettings
from services.physics.adaptive import format_schedule
from services.planner.bench.bands import MAX_BATCH, bands
from services.planner.bench.closed_loops import ShapeMeasurement

GAMMAS = {"plain": 0, "gamma-2": 2, "gamma-5": 5}


def row(arm, batch, token_ms, prompt=64):
    return ShapeMeasurement(
        arm=arm, gamma=GAMMAS[arm], batch=batch, prompt=prompt, context=90, tau=1, ttft_ms=1, token_ms=token_ms,
        cycle_ms=1, sets=1,
    )  # fmt: skip


def measured(**by_batch):
    """Return a measurement of each arm in ``GAMMAS`` at each batch size.

    ``b8=(10, 7, 9)`` means: at batch size 8, the three arms take 10, 7 and 9 ms per token.
    """
    return [
        row(arm, int(name[1:]), pace)
        for name, paces in by_batch.items()
        for arm, pace in zip(GAMMAS, paces, strict=True)
    ]


def test_each_batch_gets_its_fastest_gamma_and_larger_ones_get_none():
    found = bands(measured(b1=(10, 7, 6), b8=(12, 10, 11), b32=(20, 25, 40)), GAMMAS)
    assert format_schedule(found) == "1-1:5 2-8:2 9-256:0"
    assert format_schedule(bands(measured(b1=(10, 7, 6)), GAMMAS)) == "1-1:5 2-256:0"


def test_drafting_that_hardly_wins_is_left_off():
    assert format_schedule(bands(measured(b1=(10, 9.8, 11)), GAMMAS)) == "1-256:0"


def test_a_larger_batch_never_drafts_more():
    assert format_schedule(bands(measured(b1=(10, 7, 9), b4=(10, 9, 5)), GAMMAS)) == "1-4:2 5-256:0"


def test_an_arm_that_did_not_run_every_prompt_is_not_chosen():
    rows = [*measured(b2=(10, 12, 12)), *(row(arm, 2, 10, prompt=640) for arm in ("plain", "gamma-5"))]
    rows.append(row("gamma-2", 4, 1.0))
    assert format_schedule(bands(rows, GAMMAS)) == "1-256:0"
    assert bands([row("gamma-2", 1, 5)], GAMMAS) == ()


paces = st.floats(0.5, 50)


@given(st.dictionaries(st.integers(1, MAX_BATCH), st.tuples(paces, paces, paces), min_size=1, max_size=6))
def test_the_schedule_is_never_slower_than_off_and_the_engine_accepts_it(table):
    rows = measured(**{f"b{batch}": each for batch, each in table.items()})
    found = bands(rows, GAMMAS)
    told = VllmSettings(vllm_speculative_tokens_by_batch=format_schedule(found)).schedule()
    assert told == [(band.first, band.last, band.gamma) for band in found]
    assert found[-1].last == MAX_BATCH
    assert [band.gamma for band in found] == sorted((band.gamma for band in found), reverse=True)
    for batch, pace in table.items():
        (gamma,) = [band.gamma for band in found if band.first <= batch <= band.last]
        assert dict(zip(GAMMAS.values(), pace, strict=True))[gamma] <= pace[0]


def test_nothing_measured_says_nothing():
    assert bands([], GAMMAS) == ()
