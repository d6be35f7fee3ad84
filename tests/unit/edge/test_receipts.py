"""What the edge measures of a stream when it ends."""

import pytest
from prometheus_client import REGISTRY

from services.edge.delivery.client_writer import ClientWriter
from services.edge.delivery.hub import Hub
from services.edge.delivery.receipts import ReceiptWriter
from tests.support.edge_answers import plain_answer
from tests.unit.edge.test_subscription import ID, Wire, records, stream_of


class Producer:
    def post_now(self, topic, event):
        return topic, event


@pytest.mark.parametrize(("lane", "observed"), [("interactive", 1), ("batch", 0)])
async def test_a_first_text_for_which_nobody_waits_is_counted_apart(lane, observed):
    """A request of the batch lane may wait for a day: its first text would wake somebody as a late one."""

    def count():
        return REGISTRY.get_sample_value("railbus_edge_ttft_ms_count")

    hub, receipts, before = Hub(), ReceiptWriter(Producer(), "edge/1"), count()
    stream = stream_of(hub, lane=lane)
    receipts.record_attached(stream)
    stream.attach(ClientWriter(Wire(), 10_000))
    hub.handle(records(plain_answer(ID, ["a", "b"])))
    receipts.record_detached(stream)
    assert count() - before == observed
