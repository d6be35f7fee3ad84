import asyncio
import socket
from contextlib import AsyncExitStack

import aiohttp
import pytest

from services.runtime.errors import UserError
from services.runtime.health import HealthSettings, serve_health
from services.runtime.metrics import COMMITS


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def get(port: int, path: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, answer.headers["Content-Type"], await answer.text()


async def test_health_readiness_and_metrics() -> None:
    port = free_port()
    ready = False
    COMMITS.labels("sample").inc()
    async with serve_health(HealthSettings(port=port), lambda: ready):
        assert (await get(port, "/healthz"))[0] == 200
        assert (await get(port, "/readyz"))[0] == 503
        assert "\nrailbus_runtime_ready 0.0" in (await get(port, "/metrics"))[2]
        ready = True
        assert (await get(port, "/readyz"))[0] == 200
        status, content_type, text = await get(port, "/metrics")
        assert status == 200
        assert "\nrailbus_runtime_ready 1.0" in text
        assert content_type.startswith("text/plain")
        assert 'railbus_bus_commits_total{group="sample"} 1.0' in text
        assert (await get(port, "/other"))[0] == 404


async def test_port_zero_is_off() -> None:
    async with serve_health(HealthSettings(), lambda: True):
        pass


async def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"RAILBUS_HEALTH_PORT: 127.0.0.1:{port}"):
            async with serve_health(HealthSettings(port=port), lambda: True):
                pass


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
async def test_a_host_that_no_resolver_takes_is_the_users_mistake(host: str) -> None:
    with pytest.raises(UserError, match=f"^RAILBUS_HEALTH_HOST='{host}': must be a host name or an address$"):
        async with serve_health(HealthSettings(host=host, port=free_port()), lambda: True):
            pass


async def test_a_request_whose_body_never_comes_does_not_delay_the_end() -> None:
    port = free_port()
    async with AsyncExitStack() as serving:
        await serving.enter_async_context(serve_health(HealthSettings(port=port), lambda: True))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        async with asyncio.timeout(5):
            await serving.aclose()
    writer.close()
