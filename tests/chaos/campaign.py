"""Which rounds there are, for the tests and for the command line."""

import shutil
from contextlib import asynccontextmanager
from pathlib import Path

from tests.chaos import rails, router, safety
from tests.chaos.harness import FAULTS, Found, dice, opened
from tests.integration.rails.harness import unhurried

SERVICES = ("safety", "rails", "router")
ROUNDS_OF = {"safety": safety.round_of, "rails": rails.round_of, "router": router.round_of}

SHORT_PAUSES = {
    "2 s, fallback, streams": (2, "streams", True),
    "2 s, no fallback, receipts": (2, "receipts", False),
    "5 s, fallback, requests": (5, "requests", True),
    "5 s, no fallback, none": (5, "none", False),
    "begins, fallback, streams": (None, "streams", True),
    "begins, no fallback, streams": (None, "streams", False),
}
ALL_PAUSES = SHORT_PAUSES | {
    f"{pause_s} s, {'fallback' if on else 'no fallback'}, {burst}": (pause_s, burst, on)
    for pause_s in router.PAUSES_S
    for burst in router.BURSTS
    for on in (True, False)
}
"""How long one router is stopped (None: it begins late), which topic is long then, and whether there is a fallback."""


def faults_of(service, *, full):
    """The names of a service's faults."""
    return [*FAULTS, *(ALL_PAUSES if full else SHORT_PAUSES)] if service == "router" else [*FAULTS]


@asynccontextmanager
async def lab_of(kind, service, folder: Path, *, full):
    """A broker and what a service needs beside it."""
    env = router.fallback(on=True) if service == "router" else {}
    if service == "rails":  # no rail is late on a busy machine, and none needs a classifier
        shutil.rmtree(folder / "policy", ignore_errors=True)
        (folder / "policy").mkdir()
        env = {"RAILBUS_POLICY": str(unhurried(folder / "policy"))}
    async with opened(kind, service, folder, full=full, **env) as lab:
        yield lab


async def play(lab, service, fault, number) -> Found:
    """One round."""
    rng = dice(service, fault, number)
    if fault in FAULTS or fault == "none":
        return await ROUNDS_OF[service](lab, fault, rng)
    pause_s, burst, on = ALL_PAUSES[fault]
    if pause_s is None:
        return await router.started_round(lab, burst, rng, on=on)
    return await router.paused_round(lab, pause_s, burst, rng, on=on)
