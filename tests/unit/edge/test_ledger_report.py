"""Test that the ledger page shows the ledger's sums, even if records are repeated or the page leaves out rows."""

import random
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from schemas.account_details import CheckDetails, RecallDetails
from services.books import json_rows, newest, totals_of_windows
from services.bus import BusSettings
from services.edge.errors import ApiError
from services.edge.http.ledger_endpoint import parse_query
from services.edge.ledger.activity import MOST_RECALLS, Activity
from services.edge.ledger.report import MOST_POINTS, MOST_ROWS, STEP, Query, report_steps
from services.edge.ledger.window_reader import ACCOUNTS_BACK_S, WindowReader
from services.edge.ledger.window_store import AHEAD_S, SPAN_S, US_PER_S, WindowStore
from services.runtime.clock import steady_us
from tests.support.ledger_windows import CONFIG, busy_hour, request_at, windows_of
from tests.unit.books.events import EVENTS, T0_S, account

NOW_S = T0_S + 200
NOW_US = NOW_S * US_PER_S
ALL = Query()


def store_of(windows, now_us=NOW_US, **options):
    store = WindowStore(**options)
    for number, window in enumerate(windows):
        store.take(window, number, now_us)
    return store


def made(windows, query=ALL, now_us=NOW_US, wanted_shares=MappingProxyType({})):
    """Make a report. Return the report and the number of steps that this took."""
    steps, count = report_steps(windows, query, now_us, wanted_shares), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def sums_of(store):
    return {(key.start_at, key.cell): totals for key, totals in store.windows()}


@given(st.lists(EVENTS, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_of_each_window_and_part_the_newest_record_counts(events_of_parts, dice):
    """The newest record of each window part counts, even if the parts are published repeatedly and in any order."""
    histories = []
    for part, events in enumerate(events_of_parts):
        cuts = sorted({dice.randint(0, len(events)), len(events)})
        histories.append([window for cut in cuts for window in windows_of(events[:cut], NOW_S, part)])
    published = []
    while any(histories):
        published.append(dice.choice([history for history in histories if history]).pop(0))
    assert sums_of(store_of(published)) == totals_of_windows(newest(published))


@given(EVENTS)
def test_the_total_is_what_the_command_shows(events):
    windows = windows_of(events, NOW_S)
    report, _ = made(store_of(windows).windows())
    expected = json_rows(windows, since_at=NOW_US - SPAN_S * US_PER_S, until_at=NOW_US)
    for mine, theirs in zip([report["total"], *report["rows"]], [expected["total"], *expected["rows"]], strict=True):
        assert mine == {name: value for name, value in theirs.items() if name != "buckets"}


def test_points_routes_and_rows_each_add_up_to_the_total():
    windows = busy_hour(NOW_S)
    report, steps = made(store_of(windows).windows())
    assert report["total"]["requests"] > 250
    for parts in (report["points"], report["routes"], report["rows"]):
        assert sum(part["requests"] for part in parts) == report["total"]["requests"]
        for name, whole_ms in report["total"]["stages_ms"].items():
            assert sum(part["stages_ms"][name] for part in parts) == pytest.approx(whole_ms)
    assert [point["start_at"] for point in report["points"]] == sorted(point["start_at"] for point in report["points"])
    assert len(report["points"]) <= MOST_POINTS + 1
    assert steps >= len(windows) // STEP  # so that streams are served in between


@pytest.mark.parametrize("window_s", [2, 60, 90, 700])
def test_a_point_is_as_wide_as_some_whole_windows(window_s):
    config = replace(CONFIG, window_s=window_s)
    events = [event for number in range(60) for event in request_at(number, number * 59, NOW_S)]
    report, _ = made(store_of(windows_of(events, NOW_S, config=config)).windows())
    assert report["point_s"] % window_s == 0
    assert len(report["points"]) <= MOST_POINTS + 1
    assert sum(point["requests"] for point in report["points"]) == report["total"]["requests"]


def test_a_filter_leaves_out_the_rest_and_the_choices_stay():
    windows = store_of(busy_hour(NOW_S)).windows()
    whole, _ = made(windows)
    assert whole["choices"] == {"tenants": ["acme", "zeta"], "classes": ["batch", "chat"]}
    parts = [made(windows, Query(60, tenant, name))[0] for tenant in ("acme", "zeta") for name in ("batch", "chat")]
    assert sum(part["total"]["requests"] for part in parts) == whole["total"]["requests"]
    for part in parts:
        assert part["total"]["requests"]
        assert len({(row["tenant"], row["lane"]) for row in part["rows"]}) == 1
        assert part["choices"] == whole["choices"]
    short, _ = made(windows, Query(5))
    assert 0 < short["total"]["requests"] < whole["total"]["requests"]


def test_another_tenants_windows_are_not_even_handed_out():
    store = store_of(busy_hour(NOW_S))
    report, _ = made(store.windows("acme"), Query(tenant="zeta"))
    assert report["total"]["requests"] == 0
    assert report["choices"]["tenants"] == ["acme"]
    assert "zeta" not in str(made(store.windows("acme"))[0])


def test_rows_are_bounded_and_the_sums_are_not():
    events = [request_at(number, 9, NOW_S, tenant=f"t{number}")[0] for number in range(MOST_ROWS + 20)]
    report, _ = made(store_of(windows_of(events, NOW_S)).windows())
    assert (len(report["rows"]), report["rows_left_out"]) == (MOST_ROWS, 20)
    assert report["total"]["requests"] == MOST_ROWS + 20


def test_without_room_the_oldest_windows_go_as_a_whole():
    windows = busy_hour(NOW_S)
    dice = random.Random(3)
    dice.shuffle(windows)
    store = store_of(windows, max_parts=50)
    assert len(store) <= 50
    kept = [window for window in windows if window.start_at >= store.complete_since]
    assert store.complete_since > min(window.start_at for window in windows)
    assert sums_of(store) == totals_of_windows(newest(kept))


def test_old_windows_go_and_those_of_a_wrong_clock_never_come():
    (window,) = windows_of(request_at(1, 30, NOW_S), NOW_S)
    store = store_of([window, structs.replace(window, start_at=NOW_US + (AHEAD_S + 60) * US_PER_S, end_at=NOW_US * 2)])
    assert (len(store), store.dated_ahead) == (1, 1)
    store.forget(NOW_US + SPAN_S * US_PER_S)
    assert len(store) == 0
    store.take(window, 1, NOW_US + SPAN_S * US_PER_S)
    assert len(store) == 0


def test_a_window_whose_requests_are_gone_is_gone():
    (window,) = windows_of(request_at(1, 30, NOW_S), NOW_S)
    assert len(store_of([window, structs.replace(window, requests=0)])) == 0


def test_a_window_that_was_made_wider_is_still_the_same_window():
    (window,) = windows_of(request_at(1, 100, NOW_S), NOW_S)
    store = store_of([window, structs.replace(window, end_at=window.end_at + 60 * US_PER_S)])
    ((key, totals),) = store.windows()
    assert (key.end_at, totals.of("requests")) == (window.end_at + 60 * US_PER_S, 1)


def test_parameters():
    assert parse_query({}) == Query(60, None, None)
    assert parse_query({"minutes": "5", "tenant": "", "class": ""}) == Query(5, None, None)
    assert parse_query({"minutes": "60", "tenant": "acme", "class": "batch"}) == Query(60, "acme", "batch")


@pytest.mark.parametrize(
    ("name", "text"),
    [("minutes", "0"), ("minutes", "61"), ("minutes", "-1"), ("minutes", "1e1"), ("minutes", "٣"),
     ("minutes", "9" * 5_000), ("minutes", "0000000019"),
     ("minutes", "000000001" + "0" * 5_000), ("minutes", ""), ("class", "Fast!"), ("tenant", "x" * 257),
     ("tenant", "a\nb")],
)  # fmt: skip
def test_a_malformed_parameter_is_named(name, text):
    with pytest.raises(ApiError) as caught:
        parse_query({name: text})
    assert (caught.value.status, caught.value.param) == (400, name)


def test_each_class_is_said_to_have_attained_its_objectives_or_not():
    store = store_of(windows_of([account(n, closed_s=1.0) for n in range(10)], NOW_S))
    assert store.wanted_shares == {"chat": 0.99}
    (chat,) = made(store.windows(), wanted_shares=store.wanted_shares)[0]["classes"]
    assert (chat["service_class"], chat["judged"], chat["good"], chat["wanted"]) == ("chat", 10, 10, 0.99)
    assert (chat["attained"], chat["sure"]) == (True, False)
    assert made(store.windows())[0]["classes"] == []


def recalled(number, tenant="acme", at_s=1.0, **fields):
    details = RecallDetails(appended_at=int((T0_S + at_s) * US_PER_S), action="redact", rule="r", category="email")
    check = CheckDetails(source="safety/1", ended_at=T0_S * US_PER_S, policy_version="v", recalls=(details,))
    return account(number, closed_s=at_s, tenant=tenant, check=check, **fields)


def test_the_newest_recalls_are_shown_to_who_may_see_them():
    activity = Activity()
    for number in range(MOST_RECALLS + 5):
        for _ in range(2):  # a router may write an account twice
            activity.take(recalled(number, at_s=number), NOW_US)
    activity.take(recalled(99, "zeta", at_s=0.5), NOW_US)
    found = activity.recalls(None, 0)
    assert [each["at"] for each in found] == [(T0_S + n) * US_PER_S for n in range(MOST_RECALLS + 4, 4, -1)]
    assert [each["tenant"] for each in activity.recalls("zeta", 0)] == ["zeta"]
    assert activity.recalls("nobody", 0) == []
    assert len(activity.recalls(None, (T0_S + 20) * US_PER_S)) == 4


@pytest.mark.parametrize(("minutes", "shown"), [(60, 2), (5, 1)])
async def test_recalls_are_shown_for_as_long_as_accounts_are_read_back(minutes, shown):
    reader, now_us = WindowReader(BusSettings()), steady_us()
    for number, age_s in enumerate((ACCOUNTS_BACK_S + 30, ACCOUNTS_BACK_S - 30, 60)):
        reader._activity.take(recalled(number, at_s=now_us / US_PER_S - T0_S - age_s), now_us)
    assert len(reader._newest(None, Query(minutes))["recalls"]) == shown


def test_the_worst_breaker_is_named():
    activity = Activity()
    assert activity.breaker(0) is None
    activity.take(account(1, source="router/1", breaker="closed"), NOW_US)
    activity.take(account(2, source="router/2", breaker="open"), NOW_US)
    found = activity.breaker(0)
    assert (found["state"], found["routers"], found["of_routers"]) == ("open", 1, 2)
    activity.take(account(3, closed_s=5.0, source="router/2", breaker="closed"), NOW_US)
    assert activity.breaker(0)["state"] == "closed"
    assert activity.breaker(NOW_US) is None
