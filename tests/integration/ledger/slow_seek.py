"""``python -m tests.integration.ledger.slow_seek``: run a ledger that pauses while it starts, as on a busy machine.

After this ledger has sought to its start offsets, it waits for a second. Records arrive meanwhile.
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
