"""Tests of the benchmark's load client against the test model server, over real sockets."""

import asyncio
import json
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from tests.bench.kit import upstream as server_module
from tests.bench.kit.figures import Answer, summary
from tests.bench.kit.load import Client, closed_loop, open_loop, session
from tests.bench.kit.servers import upstream
from tests.bench.kit.upstream import BadRequest, serve, take_request


async def asked(model, *, count=1, streams=1, journal=None, timeout_s=10.0, prompt="hello", **more):
    """Start a test model server, ask it ``count`` times with ``streams`` requests open at once, and return the answers.

    The server notes its requests in the file ``journal``. ``more`` has further arguments of ``Client``.
    """
    server = await serve(0, journal)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, session(timeout_s) as connections:
        client = Client(connections, url, model, lambda number: f"{prompt} {number}", **more)
        return await closed_loop(client.ask, streams=streams, requests=count)


async def test_an_answer_keeps_its_schedule():
    answers = await asked("fake-A-t100-g20-n10", count=6)
    assert all(answer.complete for answer in answers)
    assert {answer.text for answer in answers} == {"".join(f"A{number:03d} " for number in range(10))}
    late_ms = [
        [(at - each.intended_s) * 1e3 - (100 + 20 * n) for n, at in enumerate(each.arrivals_s)] for each in answers
    ]
    assert min(map(min, late_ms)) > -1, "nothing comes early"
    assert min(late[-1] for late in late_ms) < 50, "one of six ends in time, also on a busy machine"


async def test_many_streams_at_once_are_all_right():
    answers = await asked("fake-A-t5-g5-n8", count=96, streams=32)
    found = summary(answers, 1.0, "".join(f"A{number:03d} " for number in range(8)))
    assert (found["ok"], found["wrong_text"], found["chunks_per_answer"]) == (96, 0, [8])


async def test_an_error_status_is_told():
    (answer,) = await asked("fake-A-err503")
    assert answer.error.startswith("status 503")


async def test_an_unknown_model_is_refused():
    (answer,) = await asked("gpt-4")
    assert answer.error.startswith("status 404")
    assert "names begin with fake" in answer.error


async def test_a_reset_in_the_middle_is_told():
    (answer,) = await asked("fake-A-t5-g5-n20-close10")
    assert answer.error.startswith("Client")
    assert len(answer.arrivals_s) == 10
    assert not answer.complete


async def test_a_stall_is_silence_in_the_middle(monkeypatch):
    monkeypatch.setattr("tests.bench.kit.schedule.STALL_MS", 300)
    (answer,) = await asked("fake-A-t5-g5-n6-stall3")
    gaps_ms = [(later - earlier) * 1e3 for earlier, later in pairwise(answer.arrivals_s)]
    assert gaps_ms.index(max(gaps_ms)) == 2
    assert max(gaps_ms) > 290


async def test_a_slow_head_and_signs_of_life_are_no_tokens():
    (answer,) = await asked("fake-A-t250-n2-ka")
    assert (answer.arrivals_s[0] - answer.intended_s) * 1e3 > 249
    (answer,) = await asked("fake-A-t5-n2-h250")
    assert (answer.arrivals_s[0] - answer.intended_s) * 1e3 > 249
    (answer,) = await asked("fake-A-t5-n2-h250", timeout_s=0.1)
    assert "Timeout" in answer.error


async def test_a_client_that_goes_away_is_noted(tmp_path):
    with (tmp_path / "journal").open("w") as journal:
        await asked("fake-A-t5-g1-n2", journal=journal)
        await asked("fake-A-t5-g20-n100", journal=journal, timeout_s=0.3)
        await asyncio.sleep(0.1)
    notes = [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines()]
    assert [note["event"] for note in notes] == [
        "arrived", "first_chunk", "done", "arrived", "first_chunk", "client_gone",
    ]  # fmt: skip
    assert notes[2]["sent"] == 2
    assert 1 <= notes[-1]["sent"] < 100


async def test_open_loop_counts_the_wait_for_a_busy_server():
    """In an open loop, an answer's latency counts from its intended start, and so includes the wait for a busy server.

    Requests arrive every 10 ms. Each takes 50 ms, and only one is open at a time. So the answer to request n (from 0)
    comes 50 (n + 1) - 10 n ms after its intended start.
    """
    arrivals_s = [0.01 * number for number in range(8)]

    async def ask(number, intended_s):
        answer = Answer(intended_s=intended_s, sent_s=time.perf_counter(), text=str(number), finished=True)
        await asyncio.sleep(0.05)
        answer.arrivals_s.append(time.perf_counter())
        answer.ended_s = answer.arrivals_s[0]
        return answer

    answers = await open_loop(ask, arrivals_s, most_open=1)
    assert [answer.text for answer in answers] == [str(number) for number in range(8)]
    for number, answer in enumerate(answers):
        assert answer.intended_s - answers[0].intended_s == pytest.approx(arrivals_s[number], abs=1e-6)
        assert (answer.arrivals_s[0] - answer.intended_s) * 1e3 > 50 * (number + 1) - 10 * number - 5
    assert summary(answers, 1.0)["sent_late_ms"]["max"] > 250, "closed-loop figures would all be 50 ms"


async def test_open_loop_waits_for_nobody():
    under_way = most = 0

    async def ask(number, intended_s):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.2)
        under_way -= 1
        return Answer(intended_s=intended_s)

    await open_loop(ask, [0.001 * number for number in range(20)], most_open=100)
    assert most == 20


async def test_requests_in_pieces_and_two_at_once_are_read(monkeypatch):
    server = await serve(0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
    body = b'{"model":"fake-A-t1-g1-n2","messages":[{"role":"user","content":"hi"}]}'
    request = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    for piece in (request[:20], request[20:90], request[90:] + b"GET /v1/models HTTP/1.1\r\n\r\n"):
        writer.write(piece)
        await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        assert b"A000 A001" in await reader.readuntil(b'"total_tokens":3}}')
        assert b'"id":"fake-A"' in await reader.readuntil(b"]}")
    writer.write(b"nonsense\r\n\r\n")
    async with asyncio.timeout(5):
        assert b" 400 " in await reader.read()
    writer.close()
    server.close()


def test_a_request_is_bounded(monkeypatch):
    monkeypatch.setattr(server_module, "MAX_HEAD_BYTES", 100)
    with pytest.raises(BadRequest, match="too long"):
        take_request(bytearray(b"G" * 100))
    with pytest.raises(BadRequest, match="content-length"):
        take_request(bytearray(b"POST / HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n"))
    chunked = bytearray(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nrest")
    assert take_request(chunked) == ("POST", "/", b"abc")
    assert chunked == b"rest"


def test_the_command_line_measures_a_tree(tmp_path):
    with upstream(journal=tmp_path / "journal") as server:
        command = [sys.executable, "-m", "tests.bench.kit", "load", "--url", server.url, "--model", "fake-A-t5-g2-n5"]
        command += ["--rate", "100", "--requests", "20", "--tree", f"server={server.process.pid}"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert (found["ok"], found["wrong_text"], found["errors"]) == (20, 0, {})
    assert found["trees"]["server"]["rss_mib"] > 5
    assert (tmp_path / "journal").read_text().count("arrived") == 22


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--rate", "0"], "above 0"), (["--tree", "x=999999999"], "NAME=PID"), (["--streams", "-1"], "above 0")],
)
def test_a_wrong_option_is_one_sentence(options, said):
    command = [sys.executable, "-m", "tests.bench.kit", "load", "--url", "http://127.0.0.1:1", *options]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert said in run.stderr
    assert "Traceback" not in run.stderr
