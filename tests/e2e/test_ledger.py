"""Test with a whole tree that the durations of a request's parts add up to about the time that its client waited.

Also test that the ledger counts every request, even if the ledger service is killed before some of the requests.
"""

import asyncio
import json

import pytest

from tests.bench.ledger import ask, entries_of, sum_ms
from tests.support.tree import running_tree
from tests.support.waiting import comes_true

pytest.importorskip("faust", reason="needs faust-streaming: pip install 'railbus[faust]'")
pytestmark = pytest.mark.slow

COUNT = 12
MAX_TOKENS = 32
BUSY_MS = 500.0
"""How much more time the client may measure than the ledger has, because the machine is busy, in milliseconds."""


async def test_what_clients_waited_is_in_the_ledger_and_survives_its_death(tmp_path):
    with running_tree(tmp_path, "--engine", "simulated", "--no-redis", ledger=True, start_s=240) as tree:

        def booked():
            shown = tree.railbus("ledger", "--json")
            return json.loads(shown.stdout)["total"]["sums"]["delivered"] if shown.stdout else 0

        waited = await ask(tree.url, COUNT, 2, MAX_TOKENS)
        entries = await entries_of(tree.kafka, set(waited))
        assert entries.keys() == waited.keys()
        for request_id, one in waited.items():
            assert 0 < sum_ms(entries[request_id]) <= one.ms + 1  # the client's time has the edge's in it
            assert one.ms - sum_ms(entries[request_id]) < BUSY_MS
        assert await comes_true(lambda: booked() == COUNT, 120, every_s=1)

        tree.kill("ledger")
        more = await ask(tree.url, COUNT, 2, MAX_TOKENS)
        assert await comes_true(lambda: booked() == COUNT + len(more), 240, every_s=1), (booked(), tree.stderr[-40:])
        said = await asyncio.to_thread(tree.railbus, "ledger")
        assert "where the time of a request went" in said.stdout
        assert said.returncode == 0


async def test_a_tree_serves_without_a_ledger_that_cannot_run(tmp_path):
    with running_tree(
        tmp_path, "--engine", "simulated", "--no-redis", ledger=True, start_s=240, RAILBUS_LEDGER_PLAIN_TOKEN_MS="fast"
    ) as tree:
        assert len(await ask(tree.url, 2, 1, MAX_TOKENS)) == 2
        assert await comes_true(lambda: tree.said("going on without ledger"), 60)
        assert tree.railbus("ledger").returncode == 1
