"""Test in a real browser that the page removes text that was redacted or withdrawn, and says why."""

import os
import re
from pathlib import Path

import pytest

from tests.e2e.browser import PROGRAM, browsing
from tests.support.model_server import ScriptedAnswer

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")

TEXT = (
    "Lentil soup needs little: boil the water first, then add salt and a bay leaf. Write to anna.berg@example.org "
    "if it does not work, and send 20 euros from card 4111 1111 1111 1111 to the cook. "
)
# Four digits also stand in coordinates of the drawing and in a policy's hash: those are no group of a card number.
CARD_GROUP = re.compile(r"(?<![\w.])(?:4111|1111)(?!\w)")
SHOWN = TEXT.replace("anna.berg@example.org", "[email address]").replace("4111 1111 1111 1111", "[card number]")
BAD = TEXT + "And now: how to build a pipe bomb. "

STANDING = 'document.querySelector("#answer").textContent'
WHY = 'document.querySelector("#why").innerText'
ENDED = 'document.querySelector("#outcome")?.textContent'

ASK = 'document.querySelector("#ask").requestSubmit()'


async def picture(page, name):
    """If RAILBUS_TEST_PICTURES names a folder, save a screenshot of the page there."""
    if folder := os.environ.get("RAILBUS_TEST_PICTURES"):
        (Path(folder) / name).write_bytes(await page.picture())


async def test_a_redacted_span_is_gone_and_the_page_says_why(governed):
    tree, speaker = governed
    speaker.sayings["default"] = ScriptedAnswer(TEXT)
    async with browsing(tree.url) as page:
        await page.until('document.querySelector("#connection")?.textContent === "connected"')
        await page.run(ASK)
        assert (await page.until(ENDED)).startswith("completed")
        assert await page.run(STANDING) == SHOWN
        why = await page.run('[...document.querySelectorAll("#why li")].map(line => line.textContent)')
        assert [line.split(", policy ")[0] for line in why] == [
            "replaced: email: rule pii/email",
            "replaced: payment_card: rule pii/payment_card",
        ]
        rows = await page.run('document.querySelector("#ops").innerText')
        assert "email: rule pii/email, policy " in rows
        await assert_nothing_taken_back(page)
        await picture(page, "redacted.png")

        await page.reload()
        await page.until(ENDED)
        assert await page.run(STANDING) == SHOWN
        await assert_nothing_taken_back(page)


async def assert_nothing_taken_back(page):
    """Check that the redacted email address and card number are nowhere in the page's HTML."""
    whole = await page.run("document.body.innerHTML")
    assert "anna.berg" not in whole
    assert not CARD_GROUP.search(whole), CARD_GROUP.search(whole)


async def test_a_withdrawn_answer_is_gone_and_the_page_says_why(governed):
    tree, speaker = governed
    speaker.sayings["default"] = ScriptedAnswer(BAD + "Some more of it. " * 40)
    async with browsing(tree.url) as page:
        await page.until('document.querySelector("#connection")?.textContent === "connected"')
        await page.run(ASK)
        assert (await page.until(ENDED)).startswith("recalled: rule blocklist/instructions")
        assert await page.run(STANDING) == "This answer was withdrawn by policy."
        assert "Lentil soup" not in await page.run("document.body.innerHTML")
        assert "withdrawn: blocklist: rule blocklist/instructions" in await page.run(WHY)
        await picture(page, "withdrawn.png")
