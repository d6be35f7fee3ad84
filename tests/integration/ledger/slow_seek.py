"""A ledger on a machine that is busy at the wrong moment: ``python -m tests.integration.ledger.slow_seek``.

Faust has sought to the committed offsets, and the process does not go on for a second, while records come.
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
