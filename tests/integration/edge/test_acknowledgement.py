"""Test that an edge reports a request as accepted only after the broker has acknowledged the request."""

import asyncio
import os
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest

from schemas.ids import time_ms, uuid7
from schemas.topics import REQUESTS
from services.bus import EventRejected, NotAcknowledged, Producer, partition_for
from services.edge.requests import request_service
from services.edge.requests.shared_limits import IdempotencyRecord
from services.runtime.clock import now_ms, now_us, steady_us
from tests.integration.edge.lab import ASK, PARTITIONS, deltas, open_lab
from tests.integration.edge.test_websocket import socket
from tests.support.brokers import Broker
from tests.support.waiting import until


@pytest.fixture
def own_broker(tmp_path: Path):
    """Start a new broker for each test, because the test pauses it."""
    broker = Broker("embedded", tmp_path / "data", in_memory=True)
    broker.start()
    yield broker
    broker.kill()


@contextmanager
def paused(broker):
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


async def test_a_websocket_hears_accepted_after_the_broker_has_the_request(own_broker):
    async with open_lab(own_broker.address) as lab, socket(await lab.edge()) as client:
        with paused(own_broker):
            await client.send(type="ask", prompt="hello")
            reply = asyncio.create_task(client.get())
            await asyncio.sleep(0.5)
            assert not reply.done(), reply.result()
        accepted = await reply
        assert accepted["type"] == "accepted"
        assert (await lab.next_request()).request_id == accepted["request_id"]


async def test_http_headers_with_the_id_follow_the_acknowledgement(own_broker, monkeypatch):
    """Even after ``FIRST_OP_TIMEOUT_S``, no response header is sent before the broker has acknowledged the request."""
    monkeypatch.setattr("services.edge.http.responses.FIRST_OP_TIMEOUT_S", 0.05)
    async with open_lab(own_broker.address) as lab:
        url = await lab.edge()
        with paused(own_broker):
            asking = asyncio.create_task(lab.http.post(f"{url}/v1/chat/completions", json=ASK | {"stream": True}))
            await asyncio.sleep(0.5)
            assert not asking.done()
        response = await asking
        assert response.status == 200
        assert response.headers["X-Request-Id"].endswith((await lab.next_request()).request_id)
        response.close()


async def test_what_is_not_acknowledged_by_the_total_deadline_is_an_error(own_broker):
    async with open_lab(own_broker.address) as lab:
        url = await lab.edge()
        body = ASK | {"stream": True, "railbus": {"deadlines": {"total_ms": 300}}}
        with paused(own_broker):
            async with lab.http.post(f"{url}/v1/chat/completions", json=body) as response:
                assert response.status == 503
                error = (await response.json())["error"]
        assert error["code"] == "log_unavailable"
        assert "Idempotency-Key" in error["message"]


class SilentProducer(Producer):
    """A producer that writes no requests.

    Each request fails with ``error``. If ``error`` is None, no request is ever acknowledged.
    """

    def __init__(self, producer, error=None):
        self.__dict__.update(producer.__dict__)
        self.error = error

    def post_now(self, topic, event, *, traceparent=None):
        if topic.name != "railbus.requests":
            return Producer.post_now(self, topic, event, traceparent=traceparent)
        ack = asyncio.get_running_loop().create_future()
        if self.error is not None:
            ack.set_exception(self.error)
        return ack


def with_producer(lab, url, error=None):
    service = lab.edges[url]._sockets._request_service
    real = service._producer
    service._producer = SilentProducer(real, error)
    return service, real


async def test_an_event_of_the_request_proves_as_much_as_the_acknowledgement(lab):
    """The edge sends an answer from the log to the client, even if the broker has not acknowledged the request."""
    url = await lab.edge()
    service, _ = with_producer(lab, url)
    async with lab.open_stream(url) as client:
        await lab.until_open(url)
        stream = next(iter(service._hub))
        await lab.write_plain(stream.request, "Hello")
        assert deltas(await client.rest()) == "Hello"


@pytest.mark.parametrize(("error", "asked_twice"), [(EventRejected("no"), True), (NotAcknowledged("no"), False)])
async def test_a_key_is_free_again_only_if_the_request_is_surely_not_on_the_log(lab, error, asked_twice):
    url = await lab.edge()
    service, real = with_producer(lab, url, error)
    once = {"Idempotency-Key": f"k-{asked_twice}"}
    async with lab.http.post(f"{url}/v1/chat/completions", headers=once, json=ASK) as response:
        assert response.status == 503
    service._producer = real
    asking = asyncio.create_task(lab.http.post(f"{url}/v1/chat/completions", headers=once, json=ASK))
    if asked_twice:
        await lab.answer("x")
    response = await asking
    assert response.status == (200 if asked_twice else 409)
    if not asked_twice:  # a refusal does not free the key, or the request could run twice
        async with lab.http.post(f"{url}/v1/chat/completions", headers=once, json=ASK) as response:
            assert response.status == 409


async def test_the_key_of_a_lost_request_is_free_once_it_cannot_come_any_more(lab, monkeypatch):
    url = await lab.edge()
    service, real = with_producer(lab, url, NotAcknowledged("the edge was killed"))
    once = {"Idempotency-Key": "lost"}
    async with lab.http.post(f"{url}/v1/chat/completions", headers=once, json=ASK) as response:
        assert response.status == 503
    service._producer = real
    monkeypatch.setattr(request_service, "LATE_MS", 0)
    async with lab.http.post(f"{url}/v1/chat/completions", headers=once, json=ASK) as response:
        assert response.status == 409
    asking = asyncio.create_task(lab.http.post(f"{url}/v1/chat/completions", headers=once, json=ASK))
    request = await lab.answer("x")
    assert (await asking).status == 200
    assert time_ms(request.request_id) <= now_ms()


async def test_a_request_that_came_to_the_log_late_is_not_asked_again(lab):
    """The broker was away for ten minutes, and the request waited in the producer of another edge."""
    url = await lab.edge()
    service = lab.edges[url]._sockets._request_service
    parsed = service.parse(ASK, "local")
    request_id = uuid7(now_ms() - 600_000, 4)
    request = parsed.request(request_id=request_id, tenant="local", at_us=now_us(), source="edge/other")
    record = IdempotencyRecord(request_id, request_service._body_hash(parsed))
    await service._shared_limits.claim("local", "late", record, steady_us())
    await lab._producer.send(REQUESTS, request)
    await lab.write_plain(request, "Hello")
    async with lab.http.post(f"{url}/v1/chat/completions", headers={"Idempotency-Key": "late"}, json=ASK) as response:
        assert response.status == 200
        assert (await response.json())["id"].endswith(request_id)


@pytest.mark.parametrize("leaves_during", ["claim", "post"])
async def test_a_client_that_leaves_before_its_request_is_taken_may_repeat(lab, leaves_during, monkeypatch):
    url = await lab.edge(tokens_per_minute=60_000)
    service = lab.edges[url]._sockets._request_service
    limits, reached, given_back = service._shared_limits, asyncio.Event(), []

    async def claim(*given):
        known = await type(limits).claim(limits, *given)
        reached.set()
        await asyncio.sleep(0.2)
        return known

    async def post(*_, **__):  # as if the buffer was full
        reached.set()
        await asyncio.Event().wait()

    async def give_back(quota, tenant, at_us, units):
        given_back.append((quota, units))

    once = {"headers": {"Idempotency-Key": leaves_during}, "json": ASK}
    with monkeypatch.context() as patched:
        patched.setattr(limits, "give_back", give_back)
        if leaves_during == "claim":
            patched.setattr(limits, "claim", claim)
        else:
            patched.setattr(service._producer, "post_now", lambda *_, **__: None)
            patched.setattr(service._producer, "post", post)
        leaving = asyncio.create_task(lab.http.post(f"{url}/v1/chat/completions", **once))
        await reached.wait()
        leaving.cancel()
        await until(lambda: not len(service._hub), "the stream stays open")
        await until(lambda: not service._giving_back, "nothing is given back")
    assert any(quota == "tokens" and units > 0 for quota, units in given_back)
    asking = asyncio.create_task(lab.http.post(f"{url}/v1/chat/completions", **once))
    answering = asyncio.create_task(lab.answer("x"))
    response = await asking
    answering.cancel()
    assert response.status == 200


async def test_a_resume_whose_broker_goes_away_is_told_so(own_broker, monkeypatch):
    async with open_lab(own_broker.address) as lab:
        urls = [await lab.edge(), await lab.edge()]
        request, _ = await lab.ask(urls[0])
        partition = partition_for(request.request_id, PARTITIONS)
        service = lab.edges[urls[1]]._sockets._request_service
        await until(lambda: partition not in service._partitions._plan.followed, "both edges read the partition")
        monkeypatch.setattr(request_service, "LOOKUP_TIMEOUT_S", 0.3)
        find, found = service._lookup.find_request, asyncio.Event()

        async def find_request(*given, **options):
            result = await find(*given, **options)
            os.kill(own_broker.pid, signal.SIGSTOP)
            found.set()
            return result

        monkeypatch.setattr(service._lookup, "find_request", find_request)
        resuming = asyncio.create_task(lab.http.get(f"{urls[1]}/v1/chat/completions/{request.request_id}"))
        try:
            await found.wait()
            async with asyncio.timeout(5):
                response = await resuming
            assert response.status == 503
            assert (await response.json())["error"]["code"] == "log_unavailable"
        finally:
            os.kill(own_broker.pid, signal.SIGCONT)
