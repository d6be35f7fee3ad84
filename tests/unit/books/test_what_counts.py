"""Test how late an event may come and still be counted by the ledger, and what each event adds to the sums."""

import pytest
from msgspec.structs import replace

from schemas.stream import Speculation
from services.books import BooksConfig, Objectives, OtherWindowWidth, PartitionBooks, attainments, json_rows
from tests.unit.books.events import T0_MS, T0_S, account, detached

CONFIG = BooksConfig(window_s=10, keep_s=20, show_s=60, usd_per_engine_s=0.001)
LATE_MS = T0_MS + 30_000  # the first window ends after 10 s and is kept for 20 s


def books_of(*events, config=CONFIG):
    books = PartitionBooks(0, config)
    for event in events:
        books.take(event, T0_MS)
    return books


def window_of(*events, config=CONFIG):
    (window,) = books_of(*events, config=config).all_windows()
    return window


@pytest.mark.parametrize("receipt", [False, True])
def test_an_event_counts_until_its_window_was_kept_and_no_longer(receipt):
    events = (detached(0, exposed_tokens=9),) if receipt else (account(1), account(2))
    for appended_ms, late in ((LATE_MS - 1, 0), (LATE_MS, 1)):
        books = books_of(account(0))
        books.take(events[0], appended_ms)
        assert books.late == late


def test_a_window_is_final_from_the_moment_it_is_sealed():
    books = books_of(account(0), detached(0))
    books.take(account(1, 30), LATE_MS)
    assert (books.sealed_s < T0_S, [window.final for window in books.all_windows()]) == (True, [False, False])
    books.caught_up("receipts", LATE_MS)
    books.take(account(2, 30), LATE_MS)
    assert books.sealed_s == T0_S + 10
    assert sorted((window.start_at // 1_000_000 - T0_S, window.final) for window in books.all_windows()) == [
        (0, True), (30, False),
    ]  # fmt: skip


def test_a_sealed_window_is_shown_for_its_time():
    books = books_of(account(0))
    shown = {}
    for second in range(30, 120, 10):
        books.take(account(second, second), T0_MS + second * 1_000)
        books.caught_up("receipts", books.newest_ms)
        books.take(account(second + 1, second), T0_MS + second * 1_000)
        list(books.dirty(100))
        shown[books.sealed_s - T0_S] = T0_S in books.windows
    assert shown == {10: True, 20: True, 30: True, 40: True, 50: True, 60: True, 70: False, 80: False, 90: False}


def test_the_next_owner_publishes_sealed_windows_again():
    """A service that takes over a partition publishes the sealed windows again.

    The previous owner may have died after it had sealed a window and before it had published the window.
    """
    books, table = books_of(), {}
    for event, second in ((account(0), 1), (account(1, 30), 31), (detached(1, 30), 31), (account(2, 30), 32)):
        table |= dict(books.take(event, T0_MS + second * 1_000))
    owner = PartitionBooks(0, CONFIG)
    owner.restore((key, value) for key, value in table.items() if value is not None)
    assert [window.requests for window in owner.dirty(10) if window.final] == [1]


def test_the_next_owner_deletes_what_the_one_before_did_not():
    """A service that takes over a partition deletes entries of sealed windows that the previous owner left behind."""
    books, table = books_of(), {}
    for event in (account(number) for number in range(20)):
        table |= dict(books.take(event, T0_MS))
    for event in (account(20, 30), detached(20, 30)):
        table |= dict(books.take(event, LATE_MS))
    owner = PartitionBooks(0, CONFIG)
    owner.restore((key, value) for key, value in table.items() if value is not None)
    for number in range(21, 25):
        table |= dict(owner.take(account(number, 30), LATE_MS))
    kept = {key for key, value in table.items() if b"/e/" in key and value is not None}
    assert kept == {b"0/e/" + account(number, 30).request_id.encode() for number in range(20, 25)}


@pytest.mark.parametrize(("width_s", "stored"), [(10, True), (20, False), (5, False)])
def test_sums_of_windows_with_another_width_are_not_continued(width_s, stored):
    books, table = books_of(account(0)), {}
    for event in (account(1, 30), detached(1, 30)):
        table |= dict(books.take(event, LATE_MS))
    rows = [(key, value) for key, value in table.items() if value is not None]
    owner = PartitionBooks(0, BooksConfig(window_s=width_s, keep_s=20))
    if stored:
        owner.restore(rows)
        assert owner.sealed_s == T0_S + 10
        return
    with pytest.raises(OtherWindowWidth) as other:
        owner.restore(rows)
    assert other.value.width_s == 10


def test_an_older_version_kept_no_width():
    owner = PartitionBooks(0, CONFIG)
    owner.restore([(b"0/s", b"%d" % T0_S)])
    assert owner.sealed_s == T0_S


def test_the_width_of_another_partition_does_not_count():
    owner = PartitionBooks(0, CONFIG)
    owner.restore([(b"width/1", b"7"), (b"width/01", b"7"), (b"0/s", b"%d" % T0_S)])
    assert owner.sealed_s == T0_S


def test_a_receipt_waits_for_its_account_as_long_as_that_may_come():
    early = detached(0)
    books = books_of(early)
    for second, late in ((30, 0), (50, 0), (59, 0), (60, 1)):
        books.take(account(second, second), T0_MS + second * 1_000)
        books.caught_up("receipts", books.newest_ms)
        books.take(account(second + 100, second), T0_MS + second * 1_000)
        assert (books.late, early.request_id in books.entries) == (late, not late)


def test_of_two_receipts_each_most_counts_once():
    first = detached(0, reason="gone", first_text_ms=70.0, exposed_tokens=2, exposure_ms=30.0, recalled_tokens=5)
    second = detached(0, connection="d", first_text_ms=20.0, exposed_tokens=7, exposure_ms=10.0, recalled_tokens=3)
    for events in ((first, second), (second, first)):
        window = window_of(account(0), *events)
        assert (window.sums.exposure_ms, window.sums.recalled_tokens, window.sums.delivered) == (30.0, 5, 1)
        assert window.exposed_tokens == window_of(account(0), second).exposed_tokens
        assert window.first_text == window_of(account(0), second).first_text


def test_a_client_that_left_does_not_have_the_answer():
    window = window_of(account(0), detached(0, reason="gone", waited_ms=60_000))
    assert (window.sums.delivered, window.delivery_ms) == (0, 0.0)
    assert window.total == window_of(account(0)).total


def test_what_the_client_says_of_the_first_text_goes_before_the_log():
    config = BooksConfig(slo_first_ms=60.0)
    assert window_of(account(0), config=config).sums.good == 1
    assert window_of(account(0), detached(0, first_text_ms=61.0), config=config).sums.good == 0


def test_an_edge_whose_clock_is_behind_makes_no_time_negative():
    window = window_of(account(0), detached(0, waited_ms=-2_000))
    assert (window.delivery_ms, min(getattr(window.stages, name) for name in window.stages.__struct_fields__)) == (0, 0)


def test_the_clouds_time_is_not_an_engines():
    (attempt,) = account(0).attempts
    assert window_of(account(0)).sums.engine_ms == 100.0
    cloud = window_of(account(0, attempts=(replace(attempt, engine="vertex"),), cost_usd=0.25))
    assert (cloud.sums.engine_ms, cloud.sums.usd) == (0.0, 0.25)


def test_an_engine_that_drafted_nothing_did_not_speculate():
    config = BooksConfig(plain_token_ms={"other": 3.0, "": 9.0})
    (attempt,) = account(0).attempts
    idle = replace(attempt, speculation=Speculation(steps=4, drafted=0, accepted=0))
    assert [(w.sums.speculated, w.earned_ms) for w in (window_of(account(0), config=config),)] == [(1, 40.0)]
    assert window_of(account(0, attempts=(idle,)), config=config).sums.speculated == 0


@pytest.mark.parametrize(
    ("outcome", "name", "judged"),
    [
        ("rejected", "failed", 1), ("expired", "failed", 1), ("failed", "failed", 1), ("recalled", "recalled", 1),
        ("completed", "completed", 1), ("cancelled", "cancelled", 0), ("denied", "denied", 0),
    ],
)  # fmt: skip
def test_which_outcomes_count_as_failed_and_which_are_judged(outcome, name, judged):
    sums = window_of(account(0, outcome=outcome)).sums
    counted = {each: getattr(sums, each) for each in ("completed", "recalled", "denied", "cancelled", "failed")}
    assert {each for each, count in counted.items() if count} == {name}
    assert (sums.judged, sums.good) == (judged, int(outcome in {"completed", "recalled"}))


def test_fallbacks_retries_and_lost_attempts_have_sums_of_their_own():
    stages = replace(account(0).stages, lost_attempts_ms=7.0)
    window = window_of(
        account(0, fallbacks=2, recalls=3, stages=stages), *(account(each, retries=3) for each in (1, 2))
    )
    assert (window.sums.fell_back, window.sums.retried, window.sums.recalls, window.sums.lost_ms) == (1, 2, 3, 7.0)


def test_a_report_has_the_window_in_which_it_begins_and_its_balance():
    config = BooksConfig(window_s=10, plain_token_ms={"": 9.0})
    windows = list(books_of(account(0, governance_total_ms=15.0, recalls=3), config=config).all_windows())
    begin = (T0_S + 5) * 1_000_000
    total = json_rows(windows, since_at=begin, until_at=begin + 1)["total"]
    assert (total["requests"], total["balance_ms"], total["recalled_share"]) == (1, 40.0 - 15.0, 0.0)
    assert json_rows(windows, since_at=begin + 5_000_000, until_at=begin + 5_000_001)["total"]["requests"] == 0


@pytest.mark.parametrize(("back_s", "over_s"), [(1, 6), (5, 6), (60, 60)])
def test_goodput_is_per_second_of_the_windows_that_are_counted(back_s, over_s):
    windows = list(books_of(account(0), account(1), account(2, 1, outcome="failed")).all_windows())
    until_at = (T0_S + 6) * 1_000_000
    report = json_rows(windows, since_at=until_at - back_s * 1_000_000, until_at=until_at)
    assert report["total"]["goodput_per_s"] == pytest.approx(2 / over_s)


def test_of_a_share_that_was_changed_the_newest_windows_counts():
    window = window_of(account(0))
    older, newer = replace(window, wanted_share=0.5), replace(window, start_at=window.start_at + 1, wanted_share=0.9)
    assert [attainments(each)[0].wanted for each in ((older, newer), (newer, older))] == [0.9, 0.9]


def test_an_objective_is_kept_to_its_last_microsecond():
    limits = Objectives(first_ms=1, token_ms=1, step_ms=1, total_ms=1)
    assert limits.kept(1_000, 1_000.0, 1_000, 1_000)
    for place in range(4):
        times = [1_000] * 4
        times[place] += 1
        assert not limits.kept(*times)
