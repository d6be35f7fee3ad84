"""Defect: a ledger that pauses while it starts. Run it with ``python -m tests.integration.ledger.slow_seek``.

The ledger waits for a second after it has sought to its start offsets. Meanwhile, records arrive. Such a pause happens
on a busy machine.
"""

import asyncio

from faust.transport.consumer import Consumer

from services.ledger.__main__ import main
from services.runtime import process

PAUSE_S = 1.0

_perform_seek = Consumer.perform_seek


async def perform_seek_slowly(self):
    await _perform_seek(self)
    await asyncio.sleep(PAUSE_S)


if __name__ == "__main__":
    Consumer.perform_seek = perform_seek_slowly
    process.run(main, "ledger")
