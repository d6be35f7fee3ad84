"""Test that a worker that is configured wrongly cannot make an edge show unchecked text."""

import pytest

from tests.integration.edge.lab import deltas

HOLD = {"input_gate": "hold", "output_check": "on"}


async def test_by_default_an_edge_shows_nothing_before_the_verdict(lab):
    url = await lab.edge(**HOLD)
    async with lab.open_stream(url) as client:
        writer = await lab.next_writer(checked=False)
        await lab.write(writer.started(), writer.chunk("secret"), writer.denied("No."), writer.closed("denied"))
        data = await client.rest()
    assert b"secret" not in data
    assert deltas(data) == "No."


@pytest.mark.parametrize("insists", [True, False])
async def test_text_beyond_the_exposure_limit_waits_for_the_safety_service(lab, insists):
    url = await lab.edge(input_gate="off", output_check="on" if insists else "off")
    async with lab.open_stream(url) as client:
        writer = await lab.next_writer(checked=False)
        await lab.write(writer.started(), writer.chunk("shown "), writer.chunk("waits", tokens=1_000))
        await lab.write(writer.finished(), writer.closed())
        assert deltas(await client.rest()) == ("shown " if insists else "shown waits")
