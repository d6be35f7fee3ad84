"""Tests of the ledger's page in a real browser: figures, filters, API keys, an empty ledger, and small screens."""

import json
import os
import time
from pathlib import Path

import pytest

from schemas.account_details import CheckDetails, RecallDetails
from schemas.side_events import Account
from schemas.topics import ACCOUNTS, LEDGER
from services.bus import Producer, ensure_topics
from tests.e2e.browser import PROGRAM, browsing
from tests.integration.edge.lab import open_lab
from tests.support.brokers import Broker
from tests.support.ledger_windows import busy_hour
from tests.support.waiting import until
from tests.unit.books.events import T0_S, account

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")

PHONE, DESKTOP = (390, 844), (1_100, 900)
STATUS = 'document.querySelector("#connection")?.textContent'
SHOWN = 'document.querySelector("#books")?.hidden === false'
EMPTY = 'document.querySelector("#empty")?.hidden === false'
CELLS = """[...document.querySelectorAll("#rows-table tbody tr")].map(
    row => [...row.cells].map(cell => cell.textContent))"""
FIGURES = """Object.fromEntries([...document.querySelectorAll("#figures div")].map(
    one => [one.querySelector("dt").textContent, one.querySelector("dd").firstChild.textContent]))"""


@pytest.fixture
def own_broker(tmp_path):
    """Yield a broker for one test alone, because the page shows everything on the log, even what other tests wrote."""
    broker = Broker("embedded", tmp_path / "data")
    broker.start()
    yield broker
    if broker.is_running():
        broker.stop()


@pytest.fixture
async def lab(own_broker):
    async with open_lab(own_broker.address) as it:
        yield it


async def publish(lab, windows):
    await ensure_topics(lab.bus)
    producer = Producer(lab.bus, role="ledger", name="ledger")
    await producer.start()
    for window in windows:
        await producer.post(LEDGER, window)
    await producer.stop()


async def close_requests(lab, now_s, breaker="closed"):
    """Write accounts of ten requests that were closed just now. Every second one had text recalled.

    Args:
        lab: The lab whose log the accounts are written to.
        now_s: The present time, in seconds since the epoch.
        breaker: The state of the circuit breaker that each account names.
    """
    producer = Producer(lab.bus, role={ACCOUNTS.name: frozenset({Account})}, name="router")
    await producer.start()
    for number in range(10):
        at_s = now_s - T0_S - 10 + number
        recall = RecallDetails(
            appended_at=int((T0_S + at_s) * 1e6), action="redact" if number % 4 else "stop",
            rule="pii/email-address", category="email",
        )  # fmt: skip
        check = CheckDetails(
            source="safety/1", ended_at=recall.appended_at, policy_version="v", recalls=(recall,) * (number % 2)
        )
        tenant = "zeta" if number == 3 else "acme"
        await producer.post(ACCOUNTS, account(number, at_s, tenant=tenant, check=check, breaker=breaker))
    await producer.stop()


async def pictured(page, name):
    """Save a picture of the whole page in the folder that ``RAILBUS_TEST_PICTURES`` names, if this variable is set."""
    if folder := os.environ.get("RAILBUS_TEST_PICTURES"):
        (Path(folder) / name).write_bytes(await page.picture(whole=True))


async def emulate(page, size, scheme="light"):
    """Emulate a screen of this size (a phone if narrower than 600 pixels) and this preferred colour scheme."""
    width, height = size
    await page.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
    )
    await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])


async def choose(page, name, value):
    await page.run(f"""(() => {{ const select = document.querySelector("#{name}"); select.value = "{value}";
        select.dispatchEvent(new Event("change")); }})()""")


async def test_without_sums_the_page_says_how_to_get_some(lab):
    async with browsing(f"{await lab.edge()}/ledger", DESKTOP) as page:
        await emulate(page, DESKTOP)
        await page.until(EMPTY)
        said = await page.run('document.querySelector("#empty").innerText')
        assert "railbus.ledger has no sums" in said
        assert "pip install 'railbus[faust]'" in said
        assert not await page.run(SHOWN)
        assert await page.run('getComputedStyle(document.querySelector("#key-label")).display') == "none"
        await pictured(page, "ledger-empty.png")
        await publish(lab, busy_hour(time.time()))
        await page.until(SHOWN)  # without loading it again
        assert not await page.run(EMPTY)


async def test_the_page_shows_the_sums_and_filters_them(lab):
    await publish(lab, busy_hour(time.time()))
    url = await lab.edge()
    async with browsing(f"{url}/ledger", DESKTOP) as page:
        await emulate(page, DESKTOP)
        await page.until(f"{SHOWN} && {STATUS}?.startsWith('live')")

        async def agreed():
            """Fetch the ledger's report. Return it if the page already shows as many requests, and None otherwise."""
            async with lab.http.get(f"{url}/ledger/data") as response:
                report = await response.json()
            shown = await page.run(FIGURES)
            return report if shown["Requests"] == str(report["total"]["requests"]) else None

        report = await until(agreed, "the page shows the report", every_s=0.5)
        figures = await page.run(FIGURES)
        assert {"In time", "First text", "Whole answer", "Balance", "Recalled", "Fell back", "Cost"} < set(figures)
        assert "–" not in figures.values()
        stages = await page.run('[...document.querySelectorAll("#budget .legend li span")].map(one => one.textContent)')
        assert stages == [name.replace("_", " ") for name in report["total"]["stages_ms"]]
        bars = await page.run(
            '[...document.querySelectorAll("#budget rect[height=\\"44\\"]")].map(one => one.width.baseVal.value)'
        )
        assert sum(bars) == pytest.approx(1_000, abs=1)
        columns = await page.run('document.querySelectorAll("#budget-over-time g").length')
        assert columns == len(report["points"])
        for chart in ("balance", "first", "exposure", "shares"):
            label = await page.run(f'document.querySelector("#{chart} svg").getAttribute("aria-label")')
            assert "over time" in label
            assert await page.run(f'document.querySelectorAll("#{chart} circle").length')
            if chart != "shares":
                rows = await page.run(f'document.querySelectorAll("#{chart}-table tbody tr").length')
                assert rows >= len(report["points"])
        assert await page.run("document.querySelectorAll('[style]').length") == 0

        await choose(page, "tenant", "zeta")
        await page.until(f"{CELLS}.every(row => row[0] === 'zeta')")
        await choose(page, "class", "batch")
        await page.until(f"{CELLS}.length && {CELLS}.every(row => row[0] === 'zeta' && row[1] === 'batch')")
        zeta = [row for row in report["rows"] if (row["tenant"], row["lane"]) == ("zeta", "batch")]
        assert (await page.run(FIGURES))["Requests"] == str(sum(row["requests"] for row in zeta))
        choices = await page.run('[...document.querySelector("#tenant").options].map(one => one.value)')
        assert choices == ["", "acme", "zeta"]


async def test_the_page_shows_objectives_the_breaker_and_the_latest_recalls(lab):
    await publish(lab, busy_hour(time.time()))
    await close_requests(lab, time.time(), "open")
    async with browsing(f"{await lab.edge()}/ledger", DESKTOP) as page:
        await emulate(page, DESKTOP)
        await page.until(f"{SHOWN} && {STATUS}?.startsWith('live')")
        await page.until("document.querySelector('#breaker').textContent.startsWith('Breaker open: requests go')")
        assert await page.run("document.querySelector('#breaker').className") == "bad"
        cells = (
            "[...document.querySelectorAll('#%s tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))"
        )
        await page.until(f"{cells % 'recalls-table'}.length === 5")  # accounts are read one after the other
        (chat,) = await page.run(cells % "classes-table")
        assert chat[0] == "chat"
        assert chat[1].startswith("no")  # of a busy hour, some failed
        assert chat[2] == "99.00 %"
        recalls = await page.run(cells % "recalls-table")
        assert len(recalls) == 5
        assert {row[1] for row in recalls} == {"email"}
        note = "document.querySelector('#recalls-note').textContent"
        assert await page.run(note) == "Of the last 10 minutes."
        await choose(page, "minutes", "5")
        await page.until(f"{note} === 'Of the last 5 minutes.'")
        await choose(page, "tenant", "zeta")
        await page.until(f"{cells % 'recalls-table'}.length === 1")
        assert (await page.run(cells % "recalls-table"))[0][4] == "zeta"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
async def test_the_page_fits_the_screen_in_both_colours(lab, size, scheme):
    await publish(lab, busy_hour(time.time()))
    await close_requests(lab, time.time())
    async with browsing(f"{await lab.edge()}/ledger", size) as page:
        await emulate(page, size, scheme)
        await page.until(f"{SHOWN} && {STATUS}?.startsWith('live')")
        await page.until("document.querySelectorAll('#recalls-table tbody tr').length")
        await page.run('document.querySelector("#routes-table").parentElement.open = true')
        assert await page.run("document.documentElement.scrollWidth <= innerWidth")
        ground = await page.run("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(","))) < 300) == (scheme == "dark")
        await pictured(page, f"ledger-{'phone' if size == PHONE else 'desktop'}-{scheme}.png")


async def test_a_key_is_asked_for_and_shows_its_tenant(lab, keys_file):
    await publish(lab, busy_hour(time.time()))
    async with browsing(f"{await lab.edge(api_keys_file=keys_file)}/ledger", DESKTOP) as page:
        await page.until('document.querySelector("#key-label")?.hidden === false')
        assert not await page.run(SHOWN)
        await page.run(
            'document.querySelector("#key").value = "k-a"; document.querySelector("#filters").requestSubmit()'
        )
        await page.until(SHOWN)
        assert await page.run('[...document.querySelector("#tenant").options].map(one => one.value)') == ["", "acme"]
        assert {row[0] for row in await page.run(CELLS)} == {"acme"}


async def test_a_share_that_is_not_all_or_nothing_does_not_look_so(lab):
    async with browsing(f"{await lab.edge()}/ledger", DESKTOP) as page:
        await page.until("typeof percent === 'function'")
        shares = [None, 0, 0.0004, 0.001, 0.0712, 0.4, 0.985, 0.9951, 0.9992, 1]
        assert await page.run(f"{json.dumps(shares)}.map(percent)") == [
            "–", "0 %", "< 0.1 %", "0.1 %", "7.1 %", "40 %", "98.5 %", "99.5 %", "> 99.9 %", "100 %",
        ]  # fmt: skip


async def test_the_page_says_when_its_figures_are_old(lab, own_broker):
    await publish(lab, busy_hour(time.time()))
    async with browsing(f"{await lab.edge()}/ledger", DESKTOP) as page:
        await page.until(f"{SHOWN} && {STATUS}?.startsWith('live')")
        await lab.stop_edges()
        await page.until(f"{STATUS}?.includes('no answer from the server; figures of')")
        assert await page.run(SHOWN)
