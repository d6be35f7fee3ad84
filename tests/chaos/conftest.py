"""The fixture ``lab``: one broker and several processes of one service.

The number of rounds is ``RAILBUS_TEST_ROUNDS``, by default 1. In each round, the tests of a service share two labs: one
with the embedded broker, and one with Apache Kafka.
"""

import os

import pytest
import pytest_asyncio

from tests.chaos.campaign import lab_of
from tests.chaos.lab import ROUNDS
from tests.support.brokers import BrokerUnavailable


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab(request, tmp_path_factory):
    kind, service, _ = request.param
    try:
        async with lab_of(kind, service, tmp_path_factory.mktemp(service), full=ROUNDS > 1) as opened:
            yield opened
    except BrokerUnavailable as missing:
        if os.environ.get("RAILBUS_REQUIRE_KAFKA") == "1":
            raise
        pytest.skip(f"{kind}: {missing}")
