"""Tests of ``Traffic``, which reads the events of an archive in order."""

from datetime import UTC, datetime

import pytest

pytest.importorskip("pyarrow")

from schemas.ids import time_ms
from schemas.stream import Chunk, Finished
from schemas.topics import DAY_MS, STREAMS
from services.archive.reader import received
from services.archive.traffic import Traffic
from tests.support.archives import make_archive, stored
from tests.unit.safety.world import RunWriter, request_id


def odd(records):
    """Change some records to look as if other programs had written them. Some of them cannot be read any more.

    A changed record has its headers in reverse order, an additional header, an unknown kind, no headers, or the value
    ``{}``.
    """
    found = []
    for number, record in enumerate(records):
        headers = {
            0: record.headers[::-1],
            1: (("traceparent", b"x"), *record.headers),
            2: (("kind", b"Rumour"), ("v", b"1")),
            3: (),
        }.get(number % 9, record.headers)
        found.append(record._replace(headers=headers, value=b"{}" if number % 9 == 4 else record.value))
    return found


async def test_every_event_that_can_be_read_comes_once_in_order(tmp_path):
    events = [event for number in range(7) for event in RunWriter(number).whole(["ab", "cd", "ef"])]
    records = odd(stored(events, STREAMS.name))
    archive = make_archive(tmp_path / "archive", records, per_file=8)
    wanted = [each.event for record in records if (each := received(record)) is not None]
    assert 0 < len(wanted) < len(events)

    async def read(kinds=None):
        return [event async for _, some in Traffic(archive=archive).events([STREAMS], kinds) for event in some]

    assert await read() == wanted
    assert await read({"Chunk", "Finished"}) == [event for event in wanted if isinstance(event, Chunk | Finished)]


@pytest.mark.parametrize(("kafka", "bootstrap"), [("there:9093", "there:9093"), (None, "here:9092")])
def test_a_broker_is_reached_with_the_settings_of_the_environment(monkeypatch, kafka, bootstrap):
    monkeypatch.setenv("RAILBUS_KAFKA_BOOTSTRAP", "here:9092")
    monkeypatch.setenv("RAILBUS_KAFKA_SECURITY_PROTOCOL", "SSL")
    bus = Traffic(archive=None, kafka=kafka)._bus
    assert (bus.bootstrap, bus.security_protocol) == (bootstrap, "SSL")


def test_a_request_is_wanted_by_its_own_time():
    at_ms = int(request_id(3).replace("-", "")[:12], 16)
    assert Traffic(archive=None, from_ms=at_ms, to_ms=at_ms + 1).wants(request_id(3))
    assert not Traffic(archive=None, from_ms=at_ms + 1).wants(request_id(3))
    assert not Traffic(archive=None, to_ms=at_ms).wants(request_id(3))


async def test_the_end_of_the_range_may_be_the_last_day_of_all(tmp_path):
    archive = make_archive(tmp_path / "archive", stored(RunWriter().whole(["ab"]), STREAMS.name))
    end_ms = int(datetime(9999, 12, 31, 23, 59, tzinfo=UTC).timestamp() * 1_000)
    assert [file async for file in Traffic(archive=archive, to_ms=end_ms).events([STREAMS])]


async def test_a_request_of_an_edge_whose_clock_is_ahead_is_read_whole(tmp_path):
    """If the time in a request's id is not before ``from_ms``, all events of the request are read.

    This is true even of events that the broker appended before ``from_ms``. Here these are the first two events,
    because the edge's clock is ahead of the broker's clock.
    """
    at_ms = time_ms(request_id())
    records = stored(RunWriter().whole(["ab", "cd"]), STREAMS.name, begin_ms=DAY_MS * (at_ms // DAY_MS) - 2)
    days = [
        [each for each in records if each.timestamp_ms // DAY_MS == day]
        for day in (at_ms // DAY_MS - 1, at_ms // DAY_MS)
    ]
    assert len(days[0]) == 2
    for own in days:
        archive = make_archive(tmp_path / "archive", own)
    traffic = Traffic(archive=archive, from_ms=DAY_MS * (at_ms // DAY_MS))
    found = [event async for _, some in traffic.events([STREAMS]) for event in some if traffic.wants(event.request_id)]
    assert len(found) == len(records)


@pytest.mark.parametrize("days", [1, 2, 31])
async def test_a_request_of_a_job_is_read_days_after_the_time_in_its_id(tmp_path, days):
    at_ms = time_ms(request_id())
    records = stored(RunWriter().whole(["ab"]), STREAMS.name, begin_ms=at_ms + days * DAY_MS)
    archive = make_archive(tmp_path / "archive", records)
    (file,) = archive.files()
    assert [some async for _, some in Traffic(archive=archive, to_ms=at_ms + 1).events([STREAMS])]
    assert archive.has_requests_before(file, at_ms + 1)
    assert not archive.has_requests_before(file, at_ms)
