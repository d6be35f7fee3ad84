"""Test that a generator's process ends when its engine dies."""

import asyncio

import pytest

from services.generator import liveness
from services.worker.worker import EngineDied


class Engine:
    def __init__(self, *, dies):
        self.dies = dies

    async def wait_until_dead(self):
        if not self.dies:
            await asyncio.Event().wait()


async def test_it_ends_when_the_engine_died_and_nothing_was_open(monkeypatch):
    monkeypatch.setattr(liveness, "GRACE_S", 0.01)
    ended = asyncio.Event()

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(EngineDied):
        await liveness.run_while_alive(work(), Engine(dies=True))
    assert ended.is_set()


async def test_what_the_worker_raises_itself_comes_first():
    async def work():
        await asyncio.sleep(0)
        raise LookupError

    with pytest.raises(LookupError):
        await liveness.run_while_alive(work(), Engine(dies=True))


@pytest.mark.parametrize("engine", [Engine(dies=False), object()])
async def test_otherwise_it_works_to_its_end_and_can_be_cancelled(engine):
    done = []

    async def work():
        done.append(1)

    await liveness.run_while_alive(work(), engine)
    assert done
    task = asyncio.create_task(liveness.run_while_alive(asyncio.sleep(60), engine))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
