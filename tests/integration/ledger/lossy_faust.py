"""Defect: Faust drops about one record in fifty before the ledger gets it.

Faust itself can drop records that it fetches while all partitions are paused. Run this ledger with
``python -m tests.integration.ledger.lossy_faust``.
"""

import random

from services.ledger.__main__ import main
from services.ledger.faust_flow import BookedConsumer
from services.runtime import process

_random = random.Random(11)
_hand_out = BookedConsumer._hand_out


async def hand_out_most(self, handing):
    if _random.random() < 0.02:
        handing.close()
    else:
        await _hand_out(self, handing)


if __name__ == "__main__":
    BookedConsumer._hand_out = hand_out_most
    process.run(main, "ledger")
