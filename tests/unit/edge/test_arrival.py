"""Test that the edge knows when a client's bytes arrived, even if the event loop was busy at that time."""

import asyncio
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from services.edge.http.arrival import MAX_UNREAD_US, TimedProtocol, request_timestamps, unread_since_us
from services.runtime.clock import now_us
from tests.support.waiting import until

BUSY_S = 0.4

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says when bytes arrived")


class Recorder:
    """An asyncio protocol that records the calls of its methods, and which bytes arrived at what time."""

    def __init__(self) -> None:
        self.arrived: list[tuple[bytes, int]] = []
        self.calls: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.calls.append("made")

    def connection_lost(self, exc: BaseException | None) -> None:
        self.calls.append("lost")

    def bytes_arrived(self, data: bytes, since_us: int) -> None:
        self.arrived.append((data, since_us))

    def eof_received(self) -> bool | None:
        self.calls.append("eof")
        return None

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")


def kernel_takes_timestamps() -> bool:
    """Return whether the kernel already records when bytes arrive. It begins some time after a socket requests this."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        request_timestamps([listening])
        with socket.create_connection(listening.getsockname()) as client, listening.accept()[0] as accepted:
            client.sendall(b"x")
            time.sleep(0.01)
            read_us = now_us()
            return unread_since_us(accepted, read_us) < read_us - 5_000


async def _serve(check: Callable[[Recorder, socket.socket], Coroutine[Any, Any, None]]) -> Recorder:
    recorder = Recorder()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: TimedProtocol(recorder), "127.0.0.1", 0)
    assert request_timestamps(server.sockets)
    await until(kernel_takes_timestamps)
    with socket.create_connection(server.sockets[0].getsockname()) as client:
        await check(recorder, client)
    await until(lambda: "lost" in recorder.calls)
    server.close()
    await server.wait_closed()
    return recorder


@pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])
class TestBusyLoop:
    def run(
        self, loop_factory: Callable[[], asyncio.AbstractEventLoop],
        check: Callable[[Recorder, socket.socket], Coroutine[Any, Any, None]],
    ) -> Recorder:  # fmt: skip
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(_serve(check))

    def test_bytes_count_from_when_they_arrived(self, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        sent: list[tuple[int, int]] = []

        async def check(recorder: Recorder, client: socket.socket) -> None:
            for number in range(3):
                before_us = now_us()
                client.sendall(b"hello")
                sent.append((before_us, now_us()))
                time.sleep(BUSY_S)  # noqa: ASYNC251 - the event loop is busy
                await until(lambda count=number: len(recorder.arrived) > count)

        recorder = self.run(loop_factory, check)
        assert [data for data, _ in recorder.arrived] == [b"hello"] * 3
        for (before_us, after_us), (_, since_us) in zip(sent, recorder.arrived, strict=True):
            assert before_us <= since_us <= after_us + BUSY_S * 1e6 / 2
        assert recorder.calls[0] == "made"
        assert recorder.calls[-1] == "lost"

    def test_what_was_sent_before_the_connection_was_accepted(
        self, loop_factory: Callable[[], asyncio.AbstractEventLoop]
    ) -> None:
        async def check(recorder: Recorder, client: socket.socket) -> None:
            before_us = now_us()
            client.sendall(b"early")  # nothing was awaited since the client connected
            after_us = now_us()
            time.sleep(BUSY_S)  # noqa: ASYNC251
            await until(lambda: recorder.arrived)
            assert before_us <= recorder.arrived[0][1] <= after_us + BUSY_S * 1e6 / 2

        self.run(loop_factory, check)

    def test_everything_is_passed_on_in_order(self, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        large = bytes(range(256)) * 4_000

        async def check(recorder: Recorder, client: socket.socket) -> None:
            await asyncio.to_thread(client.sendall, large)
            client.shutdown(socket.SHUT_WR)
            await until(lambda: "eof" in recorder.calls)

        recorder = self.run(loop_factory, check)
        assert b"".join(data for data, _ in recorder.arrived) == large
        times = [since_us for _, since_us in recorder.arrived]
        assert times == sorted(times)


class TestUnreadSince:
    def test_nothing_waits(self) -> None:
        left, right = socket.socketpair()
        with left, right:
            assert unread_since_us(left, 17) == 17

    def test_a_socket_that_was_not_asked(self) -> None:
        left, right = socket.socketpair()
        with left, right:
            right.send(b"x")
            assert unread_since_us(left, 17) == 17

    def test_a_time_of_day_that_was_set(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            assert request_timestamps([server])
            with socket.create_connection(server.getsockname()) as client:
                connection, _ = server.accept()
                with connection:
                    client.send(b"x")
                    time.sleep(0.05)
                    real_us = unread_since_us(connection, now_us())
                    assert real_us < now_us()
                    for read_us in (real_us - 1, real_us + MAX_UNREAD_US + 1):
                        assert unread_since_us(connection, read_us) == read_us
                    assert connection.recv(10) == b"x"  # it was only looked at
