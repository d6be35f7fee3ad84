"""Inject a fault into a service, and check how the service behaves. Pytest and the command line use this module."""

import shutil
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.chaos import rails, router, safety
from tests.chaos.faults import FAULTS
from tests.chaos.lab import ROUNDS, open_lab, round_random
from tests.chaos.results import RoundResult
from tests.integration.rails.lab import copy_patient_policy

TRIES = 3
"""How often a fault is injected at most, if the machine is too slow to judge the service."""

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
"""Pauses of the router, by name.

Each value says for how many seconds the only router is stopped (None: it starts late), which topic gets many records
meanwhile, and whether there is a fallback.
"""


def faults_of(service, *, full):
    """Return the names of the faults for a service: all of them if ``full``, otherwise a selection."""
    faults = [fault for fault in FAULTS if full or fault != "broker of two"]
    return [*faults, *(ALL_PAUSES if full else SHORT_PAUSES)] if service == "router" else faults


def cases(service, *, on_kafka):
    """Return the pytest parameters ``lab`` and ``fault`` for a service, on the embedded broker and on Apache Kafka.

    In each round, all faults on the same broker share one lab. With a single round, only the fault ``on_kafka`` is
    injected on Apache Kafka. With more rounds, all faults are injected on both brokers.
    """
    full = ROUNDS > 1
    faults = {"embedded": faults_of(service, full=full)}
    faults["kafka"] = faults["embedded"] if full else [on_kafka]
    labs = {(kind, number): (kind, service, number) for kind in faults for number in range(ROUNDS)}
    return [
        pytest.param(
            labs[kind, number],  # the same object: pytest sets up one lab for it
            fault,
            id=f"{kind}-{number}-{fault}",
            marks=[pytest.mark.kafka] if kind == "kafka" else [],
        )
        for kind in faults
        for number in range(ROUNDS)
        for fault in faults[kind]
    ]


@asynccontextmanager
async def lab_of(kind, service, folder: Path, *, full):
    """Open a lab for the ``async with`` block, with the environment variables that ``service`` needs in a campaign."""
    env = router.fallback(on=True) if service == "router" else {}
    if service == "rails":  # no rail is late on a busy machine, and none needs a classifier
        shutil.rmtree(folder / "policy", ignore_errors=True)
        (folder / "policy").mkdir()
        env = {"RAILBUS_POLICY": str(copy_patient_policy(folder / "policy"))}
    async with open_lab(kind, service, folder, full=full, **env) as lab:
        yield lab


async def play(lab, service, fault, number) -> RoundResult:
    """Inject one fault, and return the result.

    If too many answers do not count, because the test or the broker was too slow, try again.
    """
    for _ in range(TRIES):
        found = await _play_once(lab, service, fault, number)
        if found.wrong or not found.says_nothing:
            return found
    found.wrong.append(f"{found.excused} answers do not count, because test or broker was too slow ({TRIES} tries)")
    return found


async def _play_once(lab, service, fault, number):
    rng = round_random(service, fault, number)
    if fault in FAULTS or fault == "none":
        return await ROUNDS_OF[service](lab, fault, rng)
    pause_s, burst, on = ALL_PAUSES[fault]
    if pause_s is None:
        return await router.started_round(lab, burst, rng, on=on)
    return await router.paused_round(lab, pause_s, burst, rng, on=on)
