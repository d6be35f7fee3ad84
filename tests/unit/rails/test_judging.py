"""Test the metric that counts the requests that are being judged."""

import asyncio

from services.bus import BusSettings
from services.processor import RecordPosition
from services.rails.core import EvaluateRequest
from services.rails.service import RailsService
from services.rails.settings import Settings
from services.runtime import metrics
from tests.support.waiting import until
from tests.unit.rails.world import request


async def test_requests_that_have_their_verdicts_are_no_longer_counted(monkeypatch):
    judged = asyncio.Event()

    async def evaluate(*_):
        await judged.wait()

    monkeypatch.setattr(RailsService, "_evaluate", evaluate)
    service = RailsService(Settings(), BusSettings(), lambda: None)
    places = [RecordPosition("railbus.requests", 0, offset) for offset in range(3)]
    service._lanes[0].perform_all([EvaluateRequest(place, request(), None) for place in places])
    assert metrics.JUDGING._value.get() == 3
    judged.set()
    await until(lambda: not service._tasks)
    assert metrics.JUDGING._value.get() == 0
