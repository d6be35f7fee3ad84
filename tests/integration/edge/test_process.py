"""Tests of the edge's process: how it refuses wrong settings, serves, stops, and waits for a broker."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.runtime.task_groups import first_error
from tests.integration.edge.lab import ASK, PATIENCE_S
from tests.support.lab import UNGOVERNED
from tests.support.processes import START_TIMEOUT_S, free_port

ROOT = Path(__file__).parents[3]


def command(**env):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAILBUS_")}
    return {
        "args": [sys.executable, "-m", "services.edge"],
        "cwd": ROOT,
        "env": clean | UNGOVERNED | {"RAILBUS_EDGE_PORT": "0"} | env,
    }


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"RAILBUS_EDGE_HOST": "0.0.0.0"}, "RAILBUS_EDGE_HOST=0.0.0.0 is not a loopback address"),
        ({"RAILBUS_EDGE_PORT": "http"}, "RAILBUS_EDGE_PORT='http'"),
        ({"RAILBUS_API_KEYS_FILE": "/nowhere.toml"}, "RAILBUS_API_KEYS_FILE /nowhere.toml"),
        ({"RAILBUS_API_KEYS_FILE": str(ROOT / "pyproject.toml")}, "it must hold a table [keys]"),
        ({"RAILBUS_CLIENT_BUFFER_BYTES": "1"}, "RAILBUS_CLIENT_BUFFER_BYTES='1'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(env, expected):
    done = subprocess.run(**command(**env), capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
    assert done.returncode == 2
    assert expected in done.stderr
    assert done.stderr.startswith("railbus edge: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


async def test_it_serves_and_stops(lab, broker):
    options = command(RAILBUS_KAFKA_BOOTSTRAP=broker.address)
    process = await asyncio.create_subprocess_exec(
        *options["args"], cwd=options["cwd"], env=options["env"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        line = await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_S)
        assert line.startswith(b"ready edge http://127.0.0.1:")
        url = line.split()[-1].decode()
        request, _ = await lab.ask(url)
        async with lab.http.get(f"{url}/metrics") as response:
            assert "railbus_edge_requests_total 1.0" in await response.text()
        async with lab.open_stream(url) as client:
            writer = await lab.next_writer()
            await lab.write(writer.started(), writer.chunk("begun"))
            await client.until(b"begun")
            process.terminate()
            assert b"server_stopping" in await client.rest()
        out, err = await asyncio.wait_for(process.communicate(), START_TIMEOUT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    assert process.returncode == 0
    assert out == b""
    assert (await lab.detached(request.request_id)).reason == "complete"
    assert (await lab.detached(writer.request_id)).reason == "shutdown"
    assert b"Traceback" not in err
    assert b"hello" not in err  # no prompt in the log


async def test_it_ends_if_it_can_write_no_more(lab):
    async def fail(*_):
        raise RuntimeError("a fault of the producer")

    url = await lab.edge()
    lab.edges[url]._producer._hand_over = fail
    async with lab.http.post(f"{url}/v1/chat/completions", json=ASK) as response:
        assert response.status >= 500
    (edge,) = lab._edges
    done, _ = await asyncio.wait({edge}, timeout=PATIENCE_S)
    assert done
    assert "a fault of the producer" in str(first_error(edge.exception()))


async def test_without_a_broker_it_waits_and_logs_one_line():
    url = f"http://127.0.0.1:{(port := free_port())}"
    options = command(RAILBUS_KAFKA_BOOTSTRAP="127.0.0.1:1", RAILBUS_EDGE_PORT=str(port))
    process = await asyncio.create_subprocess_exec(
        *options["args"], cwd=options["cwd"], env=options["env"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        import aiohttp

        async with aiohttp.ClientSession() as http, asyncio.timeout(START_TIMEOUT_S):
            while True:
                try:
                    async with http.get(f"{url}/readyz") as response:
                        assert response.status == 503
                    break
                except aiohttp.ClientConnectorError:
                    await asyncio.sleep(0.05)
            async with http.get(f"{url}/healthz") as response:
                assert response.status == 200
            ask = {"messages": [{"role": "user", "content": "hi"}]}
            async with http.post(f"{url}/v1/chat/completions", json=ask) as response:
                assert response.status == 503
                assert (await response.json())["error"]["code"] == "not_ready"
        process.terminate()
        _, err = await asyncio.wait_for(process.communicate(), START_TIMEOUT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    assert process.returncode == 0
    assert err.count(b"unreachable") == 1
