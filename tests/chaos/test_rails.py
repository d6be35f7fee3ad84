"""Test that every request gets the right verdict when rails processes join, leave, pause or die, or the broker dies."""

import pytest

from tests.chaos.campaign import cases, play

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest.mark.parametrize(("lab", "fault"), cases("rails", on_kafka="pause"), indirect=["lab"], scope="module")
async def test_every_request_has_its_verdict(lab, fault, request):
    _, service, number = request.node.callspec.params["lab"]
    found = await play(lab, service, fault, number)
    assert found.wrong[:8] == []
