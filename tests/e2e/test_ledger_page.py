"""Test with a whole tree and a real browser that the ledger's page shows new requests without a reload."""

import pytest

from tests.bench.ledger import ask
from tests.e2e.browser import PROGRAM, browsing
from tests.support.tree import running_tree

pytest.importorskip("faust", reason="needs faust-streaming: pip install 'railbus[faust]'")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")]

COUNT = 8
PATIENCE_S = 120
FIGURES = """Object.fromEntries([...document.querySelectorAll("#figures div")].map(
    one => [one.querySelector("dt").textContent, one.querySelector("dd").firstChild.textContent]))"""
PARTS = """[...document.querySelectorAll("#budget .legend li")].map(
    one => [one.querySelector("span").textContent, parseFloat(one.querySelector("b").textContent)])"""

OUTSIDE = """[...document.querySelectorAll("#books .chart circle, #books .chart rect")].filter(mark => {
    const place = mark.getBoundingClientRect(), chart = mark.ownerSVGElement.getBoundingClientRect();
    return !(place.width && place.left >= chart.left && place.right <= chart.right + 1 && place.top >= chart.top
        && place.bottom <= chart.bottom); }).map(mark => mark.outerHTML)"""
"""JavaScript: the marks that are outside of their chart, such as a value of zero on an axis without a length."""


async def test_answers_of_a_tree_are_on_the_page(tmp_path):
    with running_tree(tmp_path, "--engine", "simulated", "--no-redis", ledger=True) as tree:
        async with browsing(f"{tree.url}/ledger") as page:
            await page.until('document.querySelector("#empty")?.hidden === false', PATIENCE_S)
            waited = await ask(tree.url, COUNT, 2, 32)
            await page.until(f'({FIGURES}).Requests === "{COUNT}"', PATIENCE_S)  # without loading it again
            parts = await page.run(PARTS)
            mean_ms = sum(each.ms for each in waited.values()) / COUNT
            assert 0 < sum(ms for _, ms in parts) <= mean_ms + 1  # the client's time has more in it than the edge's
            assert dict(parts)["decode"] > 0
            assert await page.run(OUTSIDE) == []
            assert await page.run('document.querySelector("#rows-table tbody td").textContent') == "chat"
            assert "live" in await page.run('document.querySelector("#connection").textContent')
