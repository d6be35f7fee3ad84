"""Members come, go, hang and die, and so does the broker: no poison stands, nothing harmless is taken back."""

import pytest

from tests.chaos.campaign import cases, play

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest.mark.parametrize(("lab", "fault"), cases("safety", on_kafka="join"), indirect=["lab"], scope="module")
async def test_every_answer_is_checked_to_its_end(lab, fault, request):
    _, service, number = request.node.callspec.params["lab"]
    found = await play(lab, service, fault, number)
    assert found.wrong[:8] == []
