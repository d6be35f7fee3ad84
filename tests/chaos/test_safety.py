"""Test that safety takes back forbidden text, and nothing else, although its processes join, leave, pause and die.

The broker is killed and started again, too.
"""

import pytest

from tests.chaos.campaign import cases, play

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest.mark.parametrize(("lab", "fault"), cases("safety", on_kafka="join"), indirect=["lab"], scope="module")
async def test_every_answer_is_checked_to_its_end(lab, fault, request):
    _, service, number = request.node.callspec.params["lab"]
    found = await play(lab, service, fault, number)
    assert found.wrong[:8] == []
