"""Test in a real browser that the page of ``railbus audit rejudge`` is complete, and readable on desktop and phone."""

import os
from pathlib import Path

import pytest

from services.cli.audit.rejudge_page import MAX_ROWS, rejudge_page
from tests.e2e.browser import PROGRAM, browsing

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")

SIZES = {"desk": (1_280, 900), "phone": (390, 844)}
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
WIDTHS = '[...document.querySelectorAll(".bars i")].map(bar => bar.getBoundingClientRect().width)'
RULES = ("pii/email", "pii/payment_card", "blocklist/code_names")


def recall(rule, start, action):
    return {"rule": rule, "category": rule.split("/")[1], "start": start, "end": start + 17, "action": action}


def difference(number):
    """Return a difference as ``railbus audit rejudge`` reports it: a recall that appears, moves or disappears."""
    rule = RULES[number % 3]
    sides = {
        0: (None, recall(rule, number, "redact")),
        1: (recall(rule, number, "redact"), recall(rule, 0, "stop")),
        2: (recall(rule, number, "stop"), None),
    }[number % 3]
    change = ("appears", "moves", "disappears")[number % 3]
    return {"change": change, "request_id": f"01a2065a-4e59-79e4-a424-{number:012d}", "attempt": 1, "run": 0,
            "before": sides[0], "after": sides[1]}  # fmt: skip


def told(count):
    rules = [
        {"rule": rule, "category": rule.split("/")[1], "recalls": 1_200, "right": 1_100, "precision": 0.9167,
         "exposed_chars_p50": 31.0, "exposed_chars_max": 212, "removed_chars": 20_400, "wrong_chars": 1_700}
        for rule in RULES
    ]  # fmt: skip
    sides = {"decision": "allow", "rails": {}, "egress": None}, {"decision": "deny", "rails": {"blocklist": "<b>"}}
    verdict = {"request_id": "01a2065a-4e59-79e4-a424-000000000007", "change": "denied"}
    return {
        "policy": {"name": "next", "version": "26f8deee8455424996cd"}, "recorded_versions": {"1d9c11f0aa": 4_000},
        "requests": 10_000, "chunks": 612_345, "same": 3_961, "unchecked": 2,
        "differences": [difference(number) for number in range(count)], "rules": rules,
        "labels": {"email": {"labels": 1_300, "found": 1_100, "recall": 0.846}}, "labels_of_unknown_requests": 3,
        "prompts": {
            "requests": 10_000, "same": 9_998, "unanswered": 1, "blocked": {"blocklist": 41},
            "left_out": {"rails": {"jailbreak": "--without-rail"}, "verdicts": 12},
            "differences": [verdict | {"before": sides[0], "after": sides[1]}],
        },
    }  # fmt: skip


async def picture(page, name):
    """If RAILBUS_TEST_PICTURES names a folder, save a screenshot of the page there."""
    if folder := os.environ.get("RAILBUS_TEST_PICTURES"):
        (Path(folder) / name).write_bytes(await page.picture())


@pytest.mark.parametrize("size", SIZES)
async def test_the_report_of_another_policy_is_readable(tmp_path, size):
    file = tmp_path / "rejudge.html"
    file.write_text(rejudge_page(told(MAX_ROWS + 5)), encoding="utf-8")
    async with browsing(file.as_uri(), SIZES[size]) as page:
        await page.call("Emulation.setDeviceMetricsOverride", width=SIZES[size][0], height=SIZES[size][1],
                        deviceScaleFactor=1, mobile=size == "phone")  # fmt: skip
        await page.until('document.querySelectorAll(".bars i").length === 3')
        assert await page.run(OVERFLOW) == 0
        text = await page.run("document.body.innerText")
        assert "And 5 more: --json has all." in text
        assert "335\nrecalls appear" in text
        assert "91.7%" in text
        assert "deny (blocklist: <b>)" in text  # shown as text
        widths = await page.run(
            '[...document.querySelectorAll(".bars i")].map(bar => bar.getBoundingClientRect().width)'
        )
        assert max(widths) - min(widths) < 1  # 335 each
        await picture(page, f"rejudge-{size}.png")


async def test_nothing_different_is_said_so(tmp_path):
    file = tmp_path / "rejudge.html"
    same = told(0)
    same["prompts"] |= {"differences": []}
    file.write_text(rejudge_page(same), encoding="utf-8")
    async with browsing(file.as_uri()) as page:
        await page.until('document.querySelectorAll(".good").length === 3')
