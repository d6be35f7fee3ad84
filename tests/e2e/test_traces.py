"""Test with rails and safety that the times in each request's spans equal the times in its account."""

import pytest

from tests.bench.traces import measure
from tests.support.otlp_receiver import otlp_receiver
from tests.support.tree import running_tree

REQUESTS = 50

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    with (
        otlp_receiver() as receiver,
        running_tree(
            tmp_path_factory.mktemp("traced"), "--engine", "simulated", "--traces", receiver.url, governed=True
        ) as tree,
    ):
        yield tree, receiver


async def test_the_spans_of_every_request_equal_its_account(traced):
    tree, receiver = traced
    found = await measure(tree, receiver, requests=REQUESTS, clients=8, tokens=12)

    assert found.missing == []
    assert len(found.client_ms) == REQUESTS
    assert max(found.worst_part_ms, found.worst_sum_ms, found.worst_root_ms) <= 1


def test_every_service_on_the_way_is_in_the_trace(traced):
    _, receiver = traced
    services = {span.service for spans in receiver.by_request().values() for span in spans}

    assert {"railbus-edge", "railbus-rails", "railbus-generator", "railbus-safety"} <= services
    assert b"What is the number" not in receiver.raw
