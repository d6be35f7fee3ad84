"""Test that the ledger's sums depend only on the set of events, and not on order, repetition, partitions or crashes."""

from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.ids import time_ms
from schemas.side_events import StageTimes
from services.books import (
    BooksConfig,
    Objectives,
    PartitionBooks,
    TableChange,
    merge,
    newest_of_each,
    totals_of_windows,
)
from services.books.attainment import Attainment, attainments, interval
from services.books.report import json_rows, newest, table
from tests.support.examples import examples
from tests.unit.books.events import ACCOUNTS, EVENTS, RECEIPTS, T0_MS, T0_S, account, detached

CONFIG = BooksConfig(window_s=60, keep_s=600, plain_token_ms={"": 9.0}, usd_per_engine_s=0.001)
SHORT = BooksConfig(window_s=10, keep_s=20, show_s=10_000)


def books_of(events, config=CONFIG, at_ms=T0_MS, number=0):
    books = PartitionBooks(number, config)
    for event in events:
        books.take(event, at_ms)
    return books


def closed_ms(event):
    return time_ms(event.request_id)


def sums(books):
    return totals_of_windows(books.all_windows())


def test_a_request_adds_what_its_account_and_its_receipt_say():
    (row,) = merge(books_of([account(), detached()]).all_windows())
    of = row.totals.of

    assert row.cell == ("acme", "interactive", "self_hosted", "m", "p1", None)
    assert (of("requests"), of("completed"), of("judged"), of("good"), of("delivered")) == (1, 1, 1, 1, 1)
    assert of("delivery") == 5_000
    assert of("earned") == 10 * 9_000 - 50_000
    assert of("engine_ms") == 100_000
    assert of("usd") == round(0.001 * 0.1 * 1e9)
    assert row.totals.histograms[0].quantile(0.5) == pytest.approx(61.5, rel=0.02)
    assert row.totals.histograms[2].quantile(0.5) == pytest.approx(125, rel=0.02)


def test_the_parts_add_up_to_what_the_client_waited():
    for waited_ms in (125.0, 118.0, 40.0):  # the client may have everything before ``Closed``
        (row,) = merge(books_of([account(), detached(waited_ms=waited_ms)]).all_windows())
        stages = json_rows(books_of([account(), detached(waited_ms=waited_ms)]).all_windows(), since_at=0, until_at=1)
        assert sum(stages["total"]["stages_ms"].values()) == pytest.approx(waited_ms)
        assert row.totals.histograms[2].quantile(0.5) == pytest.approx(waited_ms, rel=0.02)


def test_an_answer_that_is_read_again_a_day_later_took_no_day():
    (row,) = merge(books_of([account(), detached(), detached(waited_ms=86_400_000, connection="d")]).all_windows())
    assert row.totals.histograms[2].quantile(1) == pytest.approx(125, rel=0.02)


def test_a_late_answer_and_a_failed_one_miss_the_objective():
    events = [account(0), detached(0, waited_ms=2_500), account(1, outcome="failed", voice=None, route="none")]
    rows = merge(books_of(events).all_windows())
    assert sum(row.totals.of("judged") for row in rows) == 2
    assert sum(row.totals.of("good") for row in rows) == 0


def test_a_denied_prompt_and_the_batch_have_no_objective():
    rows = merge(books_of([account(0, outcome="denied"), account(1, lane="batch")]).all_windows())
    assert sum(row.totals.of("judged") for row in rows) == 0


def test_each_class_has_its_own_objectives_and_its_own_row():
    """Each class of requests is judged by its own objectives and has its own row in the ledger.

    For ``voice``, a token every 80 ms meets the objective, and a token every 130 ms does not. A whole answer of
    ``batch`` may take an hour.
    """
    config = BooksConfig(
        objectives={
            "voice": Objectives(first_ms=200, token_ms=100, step_ms=100), "batch": Objectives(total_ms=3_600_000),
            "free": Objectives(),
        },
        slo_first_ms=200, slo_total_ms=2_000,
    )  # fmt: skip
    steady = {"service_class": "voice", "generation_ms": 800.0, "later_tokens": 10}
    events = [
        account(0, **steady), detached(0, waited_ms=9_000),
        account(1, **(steady | {"generation_ms": 1_300.0})), detached(1),
        account(2, **(steady | {"later_tokens": 0, "longest_pause_ms": 99.0})), detached(2),
        account(9, **(steady | {"longest_pause_ms": 101.0})), detached(9),
        account(3, service_class="batch", lane="batch"), detached(3, waited_ms=3_000_000),
        account(4, service_class="batch", lane="batch", outcome="failed"),
        account(5, service_class="unheard-of"), detached(5, waited_ms=2_500),
        account(6), detached(6), account(7, service_class="free"), account(8, lane="batch"),
    ]  # fmt: skip
    rows = merge(books_of(events, config=config).all_windows())
    found = {(row.cell.service_class, row.cell.lane): (row.totals.of("judged"), row.totals.of("good")) for row in rows}
    assert found == {
        ("voice", "interactive"): (4, 2), ("batch", "batch"): (2, 1), ("unheard-of", "interactive"): (1, 0),
        (None, "interactive"): (1, 1), ("free", "interactive"): (0, 0), (None, "batch"): (0, 0),
    }  # fmt: skip


def test_an_account_of_version_1_is_counted_without_times():
    old = account(stages=None, request_at=None, voice=None, route="none", policy_version=None, attempts=())
    bare = {
        name: getattr(old, name)
        for name in ("request_id", "tenant", "at", "source", "outcome", "received_at", "closed_at")
    }
    (row,) = merge(books_of([type(old)(**bare), detached()]).all_windows())
    assert (row.totals.of("requests"), row.totals.histograms[2].total) == (1, 0)


@settings(max_examples=examples(200))
@given(EVENTS, st.randoms(), st.data())
def test_order_and_repetition_change_nothing(events, random, data):
    again = events + (data.draw(st.lists(st.sampled_from(events))) if events else [])
    random.shuffle(again)
    assert sums(books_of(again)) == sums(books_of(events))


@settings(max_examples=examples(200))
@given(EVENTS, st.integers(1, 4))
def test_partitions_add_up(events, count):
    parts = [
        books_of([event for event in events if hash(event.request_id) % count == number], number=number)
        for number in range(count)
    ]
    windows = [window for books in parts for window in books.all_windows()]
    assert totals_of_windows(windows) == sums(books_of(events))


@settings(max_examples=examples(200))
@given(
    st.lists(st.tuples(st.integers(-2_000, 45_000), ACCOUNTS | RECEIPTS), max_size=40),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 10)), max_size=5),
)
def test_a_crash_at_any_change_and_reading_again_change_nothing(steps, crashes):
    """If a crash loses the last changes of the ledger's state, the final sums are the same as without the crash.

    After the crash, the events are read again, beginning with the first event that had made a lost change.
    """
    steps = sorted(((closed_ms(event) + wait, event) for wait, event in steps), key=lambda step: step[0])
    clean = PartitionBooks(0, SHORT)
    for wait, event in steps:
        clean.take(event, wait)

    changes, ends = [], [0]  # the changelog, and its length after each event
    books, position = PartitionBooks(0, SHORT), 0
    crashes = list(crashes)
    while position < len(steps):
        wait, event = steps[position]
        changes += books.take(event, wait)
        position += 1
        del ends[position:]
        ends.append(len(changes))
        if crashes and crashes[0][0] % len(steps) < position:
            _, lost = crashes.pop(0)
            changes = changes[: max(0, len(changes) - lost)]
            position = max((index for index, end in enumerate(ends) if end <= len(changes)), default=0)
            del ends[position + 1 :]
            table = {}
            for key, value in changes:
                if value is None:
                    table.pop(key, None)
                else:
                    table[key] = value
            ends[position] = len(changes)
            books = PartitionBooks(0, SHORT)
            books.restore(table.items())
    assert sums(books) == sums(clean)


@settings(max_examples=examples(300))
@given(
    st.lists(st.tuples(st.integers(-2_000, 45_000), ACCOUNTS | RECEIPTS), max_size=40),
    st.lists(st.integers(1, 12), min_size=1, max_size=10),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 12)), max_size=5),
)
def test_a_crash_within_a_batch_of_changes_and_rereading_change_nothing(steps, sizes, crashes):
    """The ledger computes the right sums even if it crashes, loses its last changes, and reads some events again."""
    steps = sorted(((closed_ms(event) + wait, event) for wait, event in steps), key=lambda step: step[0])
    clean = PartitionBooks(0, SHORT)
    for wait, event in steps:
        clean.take(event, wait)

    log, ends, books, sizes, crashes = [], [(0, 0)], PartitionBooks(0, SHORT), cycle(sizes), dict(crashes)
    for turn in range(200):
        position = ends[-1][0]
        batch = steps[position : position + next(sizes)]
        if not batch:
            break
        log += newest_of_each([change for wait, event in batch for change in books.take(event, wait)])
        ends.append((position + len(batch), len(log)))
        if turn in crashes:
            del log[max(ends[-2][1], len(log) - crashes[turn]) :]  # what came before is acknowledged
            if ends[-1][1] > len(log):
                ends.pop()
            books = PartitionBooks(0, SHORT)
            books.restore({key: value for key, value in dict(log).items() if value is not None}.items())
            ends[-1] = (ends[-1][0], len(log))
    assert sums(books) == sums(clean)


def test_a_batch_writes_each_keys_last_change_and_keeps_marks_in_place():
    changes = [
        (b"0/e/a", b"1"),
        (b"0/e/b", b"1"),
        (b"0/e/a", b"2"),
        (b"0/w/x", b"7"),
        (b"0/s", b"60"),
        (b"0/e/a", None),
    ]
    kept = [(b"0/e/b", b"1"), (b"0/e/a", b"2"), (b"0/w/x", b"7"), (b"0/s", b"60"), (b"0/e/a", None)]
    assert newest_of_each(TableChange(*each) for each in changes) == [TableChange(*each) for each in kept]


def test_an_old_window_is_sealed_and_its_requests_are_forgotten():
    books = PartitionBooks(0, SHORT)
    books.take(account(0, 1), T0_MS + 1_000)
    books.take(detached(0, 1), T0_MS + 1_000)
    before = sums(books)
    changes = books.take(account(1, 100), T0_MS + 100_000)
    assert books.sealed_s == 0 or books.sealed_s <= T0_S  # the receipts were read only until second 1
    changes += books.take(detached(1, 100), T0_MS + 100_000)
    assert books.sealed_s == T0_S + 80
    kinds = [key.removeprefix(b"0/").partition(b"/")[0] for key, _ in changes]
    assert kinds == [b"e", b"e", b"w", b"width", b"s", b"e"]
    assert (b"width/0", b"10") in changes
    assert changes[-1].value is None
    assert len(books.entries) == 1
    assert {key: value for key, value in sums(books).items() if key in before} == before

    late = books.take(account(2, 1), T0_MS + 101_000)
    assert (late, books.late) == ([], 1)
    assert {key: value for key, value in sums(books).items() if key in before} == before


def test_a_window_sealed_after_days_of_silence_is_published_as_final():
    books = books_of([account(0), detached(0)])
    assert [window.final for window in books.dirty(10)] == [False]
    published = []
    for day in (3, 6):
        closed_s = day * 86_400
        changes = books.take(account(day, closed_s), T0_MS + closed_s * 1_000)
        books.caught_up("receipts", books.newest_ms)
        changes += books.take(account(day, closed_s + 1), T0_MS + closed_s * 1_000 + 1_000)
        published += books.dirty(10)
    assert [window.final for window in published if window.start_at == T0_S * 1_000_000] == [True]
    assert T0_S not in books.windows
    assert [value for key, value in changes if b"/w/%d/" % T0_S in key] == [None]


def test_a_silent_topic_holds_up_no_window():
    books = PartitionBooks(0, SHORT)
    for second in range(0, 200, 5):
        books.take(account(second, second), T0_MS + second * 1_000)
        books.caught_up("receipts", books.newest_ms)
    assert len(books.entries) < 8


def test_an_end_says_nothing_of_what_came_after_the_question():
    books = PartitionBooks(0, SHORT)
    books.take(account(0, 1), T0_MS + 1_000)
    asked_ms = books.newest_ms
    books.take(account(1, 100), T0_MS + 100_000)  # read before the broker has answered
    books.caught_up("receipts", asked_ms)
    books.take(detached(0, 1), T0_MS + 1_000)
    assert books.sealed_s <= T0_S
    assert books.late == 0
    assert books.entries.keys() == {account(0, 1).request_id, account(1, 100).request_id}
    assert books.entries[account(0, 1).request_id].receipt is not None


@pytest.mark.parametrize("receipt_first", [False, True])
def test_the_receipt_of_a_request_that_was_open_for_hours_counts(receipt_first):
    open_s = 5 * 3_600
    asked = {"request_id": account().request_id, "lane": "batch"}
    closed = account(0, open_s, **asked, request_at=T0_S * 1_000_000, stages=StageTimes(worker_ms=open_s * 1e3))
    receipt = detached(0, open_s, request_id=closed.request_id, waited_ms=120 + 25)
    events = [receipt, closed] if receipt_first else [closed, receipt]
    books = books_of(events, at_ms=T0_MS + open_s * 1_000 + 30)

    (row,) = merge(books.all_windows())

    assert (row.totals.of("delivered"), row.totals.of("delivery"), books.late) == (1, 25_000, 0)
    assert row.totals.histograms[3].total == 1

    books.take(replace(receipt, connection="d", exposed_tokens=99), T0_MS + (open_s + 700) * 1_000)
    assert ((row,), books.late) == (tuple(merge(books.all_windows())), 1)


def test_receipts_without_an_account_are_forgotten():
    books = PartitionBooks(0, SHORT)
    for second in range(0, 200, 5):
        books.take(detached(second, second), T0_MS + second * 1_000)
        books.caught_up("accounts", books.newest_ms)
    assert len(books.entries) < 15


def test_of_published_windows_the_last_counts():
    books = books_of([account(0)])
    published = list(books.dirty(10))
    books.take(account(1, 2), T0_MS)
    published += books.dirty(10)
    assert not list(books.dirty(10))
    assert [window.requests for window in published] == [1, 2]
    assert totals_of_windows(newest(published)) == sums(books)


def test_the_interval_is_wilsons():
    assert interval(0, 0) is None
    assert interval(9, 10) == pytest.approx((0.5958, 0.9821), abs=1e-3)
    low, high = interval(10, 10)
    assert (high, low > 0.7) == (pytest.approx(1.0), True)


def test_the_table_names_every_kind_and_their_sum():
    events = [account(0), detached(0), account(1, tenant="zeta")]
    lines = table(merge(books_of(events).all_windows()))
    assert [line.split()[0] for line in lines[1:4]] == ["acme", "zeta", "all"]
    assert table([]) == ["no request was closed in this time"]


def test_whether_a_class_attains_its_objectives_and_how_sure_that_is():
    config = BooksConfig(objectives={"chat": Objectives(total_ms=1_000)}, wanted_shares={"chat": 0.9})
    events = [account(number, service_class="chat") for number in range(40)]
    events += [detached(number, waited_ms=125 if number < 30 else 5_000) for number in range(40)]
    windows = list(books_of([*events, account(99, lane="batch")], config).all_windows())
    (chat,) = attainments(windows)
    assert chat == Attainment("chat", 0.9, 40, 30)
    assert (chat.attained, chat.sure) == (False, True)
    assert chat.line().startswith("chat        attained: no (75.00% of 40 in time, 95 %: ")
    report = json_rows(windows, since_at=0, until_at=1)
    assert report["classes"][0] == chat.json()
    assert (chat._replace(good=36).attained, chat._replace(good=36).sure) == (True, False)
    assert chat._replace(good=40, judged=40, wanted=0.5).sure
    assert chat._replace(judged=0, good=0).attained is None
    assert attainments(windows, since_at=2**60) == []
