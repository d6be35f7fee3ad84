"""Test that an edge reads ``railbus.ledger`` only while clients ask for ledger data.

Also test that a request with an API key gets only the data that this key may see.
"""

import asyncio
import time
from functools import cache

import pytest

from schemas.topics import LEDGER
from services.bus import Producer, RawRecord, write_raw_records
from services.edge.http.ledger_endpoint import parse_query
from services.edge.ledger.window_reader import WindowReader
from tests.integration.edge.lab import PATIENCE_S
from tests.support.ledger_windows import request_at, windows_of
from tests.support.waiting import until

VERSION_99 = (("kind", b"Window"), ("v", b"99"))
UNREADABLE = [
    ((("kind", b"Window"), ("v", b"1")), b"{"),
    (VERSION_99, b"{}"),
    ((("kind", b"Budget"), ("v", b"1")), b"{}"),
]
KEY_A, KEY_B = ({"Authorization": f"Bearer {key}"} for key in ("k-a", "k-b"))


@pytest.fixture
async def publish(lab):
    """Yield a function that writes windows to ``railbus.ledger``, as the ledger does."""
    producer = Producer(lab.bus, role="ledger", name="ledger")
    await producer.start()

    async def post(*windows):
        for window in windows:
            await (await producer.post(LEDGER, window))

    yield post
    await producer.stop()


@cache
def first_asked_s():
    """Return the time at which this function was first called. All tests of this module use this time.

    The time of the import is not used, because the import may be an hour earlier, and the edge shows only windows of
    the last hour.
    """
    return time.time()


def windows(tenant, count, part=0):
    """Return the ledger's windows for ``count`` requests of a tenant. ``part`` is the partition of their accounts."""
    now_s = first_asked_s()
    events = [event for number in range(count) for event in request_at(number, 5, now_s, tenant=tenant)]
    return windows_of(events, now_s, part)


async def data(lab, url, headers=None, **query):
    async with lab.http.get(f"{url}/ledger/data", params=query, headers=headers) as response:
        return response.status, await response.json()


async def live(lab, url, count, headers=None, **query):
    """Wait until the edge has read the ledger topic to its end and reports ``count`` requests. Return its report."""

    async def shown():
        status, found = await data(lab, url, headers, **query)
        assert status == 200, found
        return found if found["state"] == "live" and found["total"]["requests"] == count else None

    return await until(shown, f"{count} requests", within_s=PATIENCE_S)


async def test_the_newest_record_of_each_part_counts(lab, publish):
    url = await lab.edge()
    await publish(*windows("parts", 2), *windows("parts", 3, part=1))
    await live(lab, url, 5, tenant="parts")
    await publish(*windows("parts", 4))  # the same window again, with two requests more
    found = await live(lab, url, 7, tenant="parts")
    assert [(row["tenant"], row["requests"]) for row in found["rows"]] == [("parts", 7)]
    assert found["published_age_s"] < PATIENCE_S
    assert found["log_age_s"] < PATIENCE_S


async def test_a_key_sees_its_own_tenant(lab, publish, keys_file):
    await publish(*windows("acme", 3), *windows("bolt", 5))
    url = await lab.edge(api_keys_file=keys_file, metrics_tenants="bolt, other")
    acme = await live(lab, url, 3, KEY_A)
    assert acme["choices"]["tenants"] == ["acme"]
    assert {row["tenant"] for row in acme["rows"]} == {"acme"}
    assert (await live(lab, url, 5, KEY_B, tenant="bolt"))["total"]["requests"] == 5
    assert (await live(lab, url, 3, KEY_B, tenant="acme"))["total"]["requests"] == 3
    status, denied = await data(lab, url, KEY_A, tenant="bolt")
    assert (status, denied["total"]["requests"], denied["rows"]) == (200, 0, [])
    assert "bolt" not in str(denied)


async def test_without_a_list_no_key_sees_other_tenants(lab, publish, keys_file):
    await publish(*windows("acme", 3), *windows("bolt", 5))
    url = await lab.edge(api_keys_file=keys_file)
    assert (await live(lab, url, 5, KEY_B))["choices"]["tenants"] == ["bolt"]
    for headers, code in ((None, "missing_api_key"), ({"Authorization": "Bearer no"}, "invalid_api_key")):
        status, error = await data(lab, url, headers)
        assert (status, error["error"]["code"]) == (401, code)
    async with lab.http.get(f"{url}/ledger") as response:
        assert response.status == 200  # the page itself has no data


async def test_an_unreadable_record_is_left_out_and_counted(lab, publish):
    await publish(*windows("broken", 2))
    records = [RawRecord(LEDGER.name, 0, b"broken", value, headers) for headers, value in UNREADABLE]
    await write_raw_records(lab.bus, records, name="test")
    await publish(*windows("broken", 3))
    url = await lab.edge()
    found = await live(lab, url, 3, tenant="broken")
    assert found["unreadable"] >= len(UNREADABLE)


@pytest.mark.parametrize(("name", "value"), [("minutes", "0"), ("class", "Fast!"), ("tenant", "x" * 300)])
async def test_a_malformed_parameter_is_named(lab, name, value):
    status, error = await data(lab, await lab.edge(), **{name: value})
    assert (status, error["error"]["code"], error["error"]["param"]) == (400, "invalid_value", name)


async def test_nothing_is_read_before_somebody_asks_and_after_nobody_does(lab, publish):
    await publish(*windows("idle", 2))
    reader = WindowReader(lab.bus, idle_s=0.5)
    running = asyncio.create_task(reader.run())
    query = parse_query({"tenant": "idle"})
    try:
        assert not reader.reads
        for _ in range(2):
            await until(lambda: _shows(reader, query, b'"requests":2'), within_s=PATIENCE_S)
            await until(lambda: not reader.reads, within_s=PATIENCE_S)
    finally:
        running.cancel()


async def _shows(reader, query, text):
    return text in await reader.report(None, query)
