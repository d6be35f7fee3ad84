"""Test where the next owner of a partition starts to read the log: shortly before the oldest open request."""

from hypothesis import given
from hypothesis import strategies as st

from services.router.state.oldest_open import MARGIN_US, SPARE, OldestOpen

AHEAD_US = 7_000_000
"""How far the broker's clock is ahead of the clock of the process, in microseconds."""

STEPS = st.lists(st.tuples(st.sampled_from(["open", "again", "close"]), st.integers(0, 10**9)), max_size=60)


@given(STEPS)
def test_it_is_the_oldest_open_request_or_how_far_was_read(steps):
    oldest, first_us, now_us = OldestOpen(), {}, 10**10
    for number, (what, dice) in enumerate(steps):
        now_us += 1_000
        if what == "open":
            first_us[f"r{number}"] = now_us
            oldest.note(f"r{number}", now_us + AHEAD_US, now_us)
        elif first_us:
            chosen = sorted(first_us)[dice % len(first_us)]
            if what == "again":  # its ``Request`` is read after an event that was appended later
                first_us[chosen] -= dice % 100_000
                oldest.note(chosen, first_us[chosen] + AHEAD_US, first_us[chosen])
                continue
            known_us = now_us - dice % 2_000_000
            others = [at_us for name, at_us in first_us.items() if name != chosen]
            marked = oldest.mark_us(first_us, chosen, known_us)
            assert marked == min([known_us, *others]) + AHEAD_US - MARGIN_US
            if dice % 3:  # else the request stays open, so other requests' accounts must mind it
                del first_us[chosen]


def test_a_straggler_does_not_make_it_remember_what_came_after():
    oldest = OldestOpen()
    oldest.note("straggler", MARGIN_US, MARGIN_US)
    for number in range(10 * SPARE):
        now_us = MARGIN_US + number
        oldest.note(f"r{number}", now_us, now_us)
        assert oldest.mark_us({"straggler", f"r{number}"}, f"r{number}", now_us) == 0
    assert len(oldest._heap) <= SPARE + 5
