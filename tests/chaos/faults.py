"""Faults in a service's consumer group or in the broker, such as a killed member or a restarted broker."""

import asyncio
import signal


async def _join(lab, rng):
    await lab.start()


async def _leave(lab, rng):
    await lab.let_go(lab.members.pop(rng.randrange(2)))


async def _pause(lab, rng):
    member = rng.choice(lab.members)
    member.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(lab.pause_s)
    finally:
        member.signal(signal.SIGCONT)


async def _kill(lab, rng):
    lab.members.pop(rng.randrange(2)).kill()
    await asyncio.sleep(lab.session_s + 1)


async def _broker(lab, rng):
    await asyncio.to_thread(lab.broker.kill)
    await asyncio.sleep(1)
    lab.broker.launch()
    await asyncio.to_thread(lab.broker.wait_until_ready)
    await asyncio.sleep(1)


async def _nothing(lab, rng):
    await asyncio.sleep(1)


FAULTS = {
    "broker": (1, _broker),
    "join": (1, _join),
    "pause": (2, _pause),
    "broker of two": (2, _broker),
    "leave": (2, _leave),
    "kill": (2, _kill),
}
"""For each fault, the number of members that run before it, and the function that causes it.

The order of the faults is such that few members must be started.
"""

BEFORE_S = 1.5


class RoundPhase:
    """The phase of a fault: 0 before it, 1 during it, 2 after it."""

    def __init__(self):
        self.phase = 0


async def run_round(lab, fault, rng, *, through, inside):
    """Cause one fault while players run. A player is an async function that writes events.

    Args:
        through: Players that begin before the fault.
        inside: Players that begin during the fault.
    """
    members, strike = (2, _nothing) if fault == "none" else FAULTS[fault]
    await lab.have(members)
    stage, lasts_s = RoundPhase(), {"pause": lab.pause_s, "kill": lab.session_s}.get(fault, 1.0)

    async def later(player, delay_s):
        await asyncio.sleep(delay_s)
        await player(stage)

    async with asyncio.TaskGroup() as tasks:
        for player in through:
            tasks.create_task(later(player, rng.uniform(0, BEFORE_S - 0.5)))
        await asyncio.sleep(BEFORE_S)
        stage.phase = 1
        for player in inside:
            tasks.create_task(later(player, rng.uniform(0, lasts_s)))
        await strike(lab, rng)
        await asyncio.sleep(0.5)
        stage.phase = 2
    lab.check_members()
