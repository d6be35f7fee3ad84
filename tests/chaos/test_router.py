"""Test that every request has the right end, and none ends too early, although routers join, leave, pause and die.

The broker is killed and started again, too.
"""

import pytest

from tests.chaos.campaign import cases, play

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


CASES = cases("router", on_kafka="5 s, fallback, requests")


@pytest.mark.parametrize(("lab", "fault"), CASES, indirect=["lab"], scope="module")
async def test_every_request_ends_as_it_should(lab, fault, request):
    _, service, number = request.node.callspec.params["lab"]
    found = await play(lab, service, fault, number)
    assert found.wrong[:8] == []
