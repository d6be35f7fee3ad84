"""Test the tracer with a real broker, a simulated OTLP receiver, and the real OpenTelemetry Collector."""

import asyncio
import re

import aiohttp
import pytest

from tests.integration.tracer.lab import TracerLab, part_spans
from tests.support.otlp_receiver import OtlpReceiver, otlp_receiver, running_collector
from tests.support.processes import free_port
from tests.support.waiting import comes_true, until

CLIENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
async def lab():
    async with TracerLab.opened() as opened:
        yield opened


@pytest.fixture
def receiver():
    with otlp_receiver() as running:
        yield running


def assert_equals_the_account(lab, receiver, request_id):
    spans, account = receiver.by_request()[request_id], lab.account(request_id)
    (root,) = [span for span in spans if span.attributes.get("railbus.request_id")]
    parts = sorted(part_spans(spans), key=lambda span: span.start_ns)
    sent, wanted = {span.name: span.ms for span in parts}, dict(account.parts)
    for name in sent.keys() | wanted.keys():  # a part of 240 ns is the rounding of a time of day, and may be missing
        assert sent.get(name, 0.0) == pytest.approx(wanted.get(name, 0.0), abs=0.01), f"{name}: {sent}, {wanted}"
    assert sum(span.ms for span in parts) == pytest.approx(account.total_ms, abs=1)
    assert root.ms == pytest.approx(account.total_ms, abs=1)
    assert {span.parent_id for span in parts} == {root.span_id}
    return root


async def test_the_spans_of_requests_equal_their_accounts(lab, receiver):
    tracer = await lab.tracer(receiver.url)
    ids = [await lab.play() for _ in range(20)]
    await until(lambda: receiver.by_request().keys() >= set(ids), "every request has its trace")
    await lab.until(lambda: all(lab.account(each) for each in ids))
    for request_id in ids:
        root = assert_equals_the_account(lab, receiver, request_id)
        assert root.trace_id == request_id.replace("-", "")
        assert root.parent_id == ""
    assert b"hello" not in receiver.raw  # every prompt here
    sent = receiver.raw
    for request_id in ids:  # hexadecimal digits may spell anything
        sent = sent.replace(request_id.encode(), b"").replace(request_id.replace("-", "").encode(), b"")
    assert b"abc" not in sent  # every answer
    assert await tracer.stop() == 0


async def test_a_clients_trace_goes_on(lab, receiver):
    await lab.tracer(receiver.url)
    request_id = await lab.play(traceparent=CLIENT)
    unwanted = await lab.play(traceparent=CLIENT[:-2] + "00")
    last = await lab.play()
    await until(lambda: {request_id, last} <= receiver.by_request().keys())
    root = assert_equals_the_account(lab, receiver, request_id)
    assert (root.trace_id, root.parent_id) == (CLIENT[3:35], CLIENT[36:52])
    assert unwanted not in receiver.by_request()


async def test_a_request_whose_client_left_no_receipt_is_traced_to_its_close(lab, receiver):
    await lab.tracer(receiver.url)
    request_id = await lab.play(receipt=False)
    await until(lambda: request_id in receiver.by_request())
    assert_equals_the_account(lab, receiver, request_id)
    assert "delivery" not in {span.name for span in receiver.by_request()[request_id]}


async def test_the_real_collector_takes_the_spans(lab, receiver, tmp_path):
    with running_collector(receiver, tmp_path) as collector:
        await lab.tracer(collector)
        ids = [await lab.play() for _ in range(10)]
        await until(lambda: receiver.by_request().keys() >= set(ids), "the collector passes every trace on")
        for request_id in ids:
            assert_equals_the_account(lab, receiver, request_id)


async def test_a_killed_tracer_loses_nothing(lab, receiver):
    tracer = await lab.tracer(receiver.url)
    ids = [await lab.play() for _ in range(5)]
    tracer.kill()
    ids += [await lab.play() for _ in range(5)]
    await lab.tracer(receiver.url)
    ids += [await lab.play() for _ in range(5)]
    await until(lambda: receiver.by_request().keys() >= set(ids), "every request has its trace")
    for request_id in ids:  # those that were exported twice have the same spans twice
        assert_equals_the_account(lab, receiver, request_id)


async def test_a_collector_that_is_ill_or_away_costs_only_spans(lab):
    receiver = OtlpReceiver()
    receiver.status = 503  # an answer after which a client tries again, and spans have to wait
    env = {"RAILBUS_TRACES_QUEUE": "100", "RAILBUS_HEALTH_PORT": str(free_port())}
    tracer = await lab.tracer(receiver.url, **env)
    url = f"http://127.0.0.1:{env['RAILBUS_HEALTH_PORT']}"

    async def played_and_counted(outcome):
        await asyncio.gather(*(lab.play() for _ in range(20)))
        return await _counted(url, outcome)

    with otlp_receiver(receiver):
        await until(lambda: played_and_counted("dropped"), "more spans wait than may, and are dropped", within_s=120)
    await until(lambda: played_and_counted("failed"), "spans were not taken", within_s=120)
    async with aiohttp.ClientSession() as http, http.get(f"{url}/readyz") as answer:
        assert answer.status == 200
    assert tracer.stderr.count("takes no spans") == 1
    receiver.status = 200
    with otlp_receiver(receiver):
        await until(lambda: _played_and_seen(lab, receiver), "spans flow again", within_s=120, every_s=0.2)


async def _counted(url, outcome):
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as answer:
        text = await answer.text()
    (count,) = re.findall(rf'railbus_tracer_spans_total{{outcome="{outcome}"}} (\S+)', text)
    return float(count)


async def _played_and_seen(lab, receiver):
    request_id = await lab.play()
    return await comes_true(lambda: request_id in receiver.by_request(), 10)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({}, "OTEL_EXPORTER_OTLP_ENDPOINT is not set: name a collector"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "127.0.0.1:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT='127.0.0.1:4318': must be an"),
    ],
)
async def test_without_a_collector_it_does_not_start(lab, env, said):
    process = lab.start(**env)
    assert await process.ended() == 2
    assert process.stderr.startswith(f"railbus tracer: {said}")
    assert process.stderr.count("\n") == 1
