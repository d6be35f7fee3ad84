"""Test that each writer's clock skew is measured all the time but reported once, and that memory is limited."""

from schemas.base import Event
from services.processor.skew import MAX_SOURCES, SILENT_US, WINDOW_US, SkewMeter
from tests.unit.router.world import MS, T0, chunk, request


def heard(meter: SkewMeter, skew_ms: int, ways_ms: list[int], *, now_us: int = T0) -> list[tuple[str, float] | None]:
    """Let ``meter`` measure chunks of a writer whose clock is ``skew_ms`` ahead. Return the result for each chunk.

    ``ways_ms`` has the time that each chunk takes to reach the broker.
    """
    events = [chunk(seq, at_ms=1_000 * seq + skew_ms) for seq in range(len(ways_ms))]
    times = [(T0 + 1_000 * MS * seq) // 1_000 + way_ms for seq, way_ms in enumerate(ways_ms)]
    step_us = WINDOW_US // (len(ways_ms) - 1)
    return [meter.note(*each, now_us + nth * step_us) for nth, each in enumerate(zip(events, times, strict=True))]


def test_the_quickest_way_tells_how_far_a_clock_is_off() -> None:
    for skew_ms in (-2_000, 2_000):
        meter = SkewMeter()
        told = heard(meter, skew_ms, [40, 900, 2, 700])
        assert told == [None, None, None, ("test", skew_ms - 2.0)]
        assert meter.worst_ms(T0 + WINDOW_US) == {"other": skew_ms - 2.0}


def test_a_source_is_told_once_and_measured_on() -> None:
    meter = SkewMeter()
    assert heard(meter, 2_000, [1, 1, 1])[-1] is not None
    assert heard(meter, 3_000, [1, 1, 1], now_us=T0 + 2 * WINDOW_US) == [None] * 3
    assert meter.worst_ms(T0 + 3 * WINDOW_US) == {"other": 2_999.0}


def test_a_process_that_was_replaced_counts_no_longer() -> None:
    meter = SkewMeter()
    heard(meter, 2_000, [1, 1, 1])
    assert meter.worst_ms(T0 + WINDOW_US + SILENT_US - 1) == {"other": 1_999.0}
    assert meter.worst_ms(T0 + WINDOW_US + SILENT_US) == {"other": 0.0}
    heard(meter, 2_000, [1, 1, 1], now_us=T0 + 2 * SILENT_US)
    assert meter.worst_ms(T0 + 2 * SILENT_US + WINDOW_US) == {"other": 1_999.0}


def test_delays_alone_are_no_skew() -> None:
    meter = SkewMeter()
    assert heard(meter, 0, [9_000, 800, 3, 5_000]) == [None] * 4


def test_a_request_that_waited_at_its_edge_is_no_sign_of_a_slow_clock() -> None:
    meter = SkewMeter()
    told = [meter.note(request(at_ms=0, waited_ms=2_000), T0 // 1_000 + 2_001, T0 + n * WINDOW_US) for n in range(4)]
    assert told == [None] * 4


def test_a_request_that_a_router_wrote_again_says_nothing_about_the_router() -> None:
    meter = SkewMeter()
    told = [meter.note(request(at_ms=0, attempt=2), T0 // 1_000 + 9_000, T0 + n * WINDOW_US) for n in range(4)]
    assert told == [None] * 4
    assert meter.worst_ms(T0) == {}


def test_sources_without_number_are_forgotten() -> None:
    meter = SkewMeter()
    for number in range(3 * MAX_SOURCES):
        meter.note(Event(request_id="r", tenant="t", at=T0, source=f"app/{number}"), T0 // 1_000, T0)
    assert len(meter._sources) == MAX_SOURCES


def test_the_source_that_was_silent_for_longest_is_forgotten_first() -> None:
    meter = SkewMeter()
    for number in (*range(MAX_SOURCES), 0, MAX_SOURCES):
        meter.note(Event(request_id="r", tenant="t", at=T0, source=f"app/{number}"), T0 // 1_000, T0)
    assert {"app/0", "app/1"} & meter._sources.keys() == {"app/0"}


def test_few_events_and_events_without_a_time_tell_nothing() -> None:
    assert heard(SkewMeter(), 2_000, [1, 1]) == [None] * 2
    meter = SkewMeter()
    assert [meter.note(chunk(n), 0, T0 + n * WINDOW_US) for n in range(4)] == [None] * 4
    assert meter.worst_ms(T0) == {}
