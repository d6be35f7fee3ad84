"""Inject random faults into a tree, one every few seconds, or restart each process in turn."""

import asyncio
import signal
import sys
import time

from tests.chaos.cluster.recovery import Fault
from tests.chaos.cluster.tree import SESSION_S, TWO_OF
from tests.support.waiting import comes_true

MOST_PAUSE_S = SESSION_S + 2
NODE_DOWN_S = (1.0, 5.0)
NODE_BACK_S = 90.0
MOST_OF_A_SERVICE = 3
MOST_DRAWS = 20
UPGRADE_ORDER = ("router", "edge", "safety", "rails", "generator", "vertex")
"""The order of docs/operations/upgrades.md: services that read an event come before services that write it."""

MOST_AT_ONCE = 5
"""Maximum number of faults at the same time. Two cores cannot start many processes at once."""

WEIGHTS = {"kill": 30, "pause": 36, "stop": 12, "join": 5, "leave": 5, "kafka kill": 6, "kafka pause": 6}


class Striker:
    """Injects random faults. ``run`` starts faults until a given time. ``settle`` waits until all faults have ended."""

    def __init__(self, tree, rng, every_s, campaign):
        self._tree, self._rng, self._every_s, self._campaign = tree, rng, every_s, campaign
        self._under_way = set()
        self._node_busy = False
        self.faults = []

    async def run(self, until):
        while time.monotonic() < until:
            await asyncio.sleep(self._rng.uniform(0.5, 1.5) * self._every_s)
            if len(self._under_way) < MOST_AT_ONCE:
                self._strike()

    async def settle(self):
        """Wait until all faults have ended. Then start every process that is not ready."""
        await asyncio.gather(*self._under_way, return_exceptions=True)
        for place in self._tree.places:
            if not place.ready:
                await place.start()

    def _strike(self):
        """Begin one random fault. If the drawn fault is impossible now, draw another one."""
        for _ in range(MOST_DRAWS):
            kind = self._rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            if self._strike_node(kind) if kind.startswith("kafka") else self._strike_member(kind):
                return

    def _strike_node(self, kind):
        if self._node_busy:
            return False
        self._node_busy = True
        node = self._rng.randrange(1, self._tree.kafka.nodes + 1)
        self._do(kind, self._node_is_killed(node) if kind == "kafka kill" else self._node_pauses(node))
        return True

    def _strike_member(self, kind):
        service = self._rng.choice(TWO_OF)
        live = self._tree.live(service)
        if kind == "join":
            if sum(place.service == service for place in self._tree.places) >= MOST_OF_A_SERVICE:
                return False
            place = self._tree.place(service)
            place.busy = True
            self._do(f"join {service}", self._start(place))
            return True
        if len(live) < (MOST_OF_A_SERVICE if kind == "leave" else 2):  # one goes on serving
            return False
        place = self._rng.choice(live)
        place.busy = True
        acts = {"kill": self._kill, "pause": self._pause, "stop": self._stop, "leave": self._leave}
        self._do(f"{kind} {service}", acts[kind](place))
        return True

    def _do(self, kind, act):
        self.faults.append(Fault(kind, self._campaign.open_readers))
        task = asyncio.create_task(self._report(self.faults[-1], act))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _report(self, fault, act):
        try:
            await act
        except Exception as error:  # noqa: BLE001 - a fault that cannot be done is a finding, the rest goes on
            self._tree.trouble.append(f"{fault.kind}: {error!r}"[:3_000])
            print(self._tree.trouble[-1], file=sys.stderr, flush=True)
        finally:
            fault.over()

    async def _start(self, place):
        await place.start()
        place.busy = False

    async def _kill(self, place):
        place.drop()
        await self._start(place)

    async def _pause(self, place):
        place.process.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(self._rng.uniform(0.3, MOST_PAUSE_S))
        finally:
            place.process.signal(signal.SIGCONT)
        await asyncio.sleep(1)
        place.busy = False

    async def _stop(self, place):
        await self._told_to_stop(place)
        await self._start(place)

    async def _leave(self, place):
        await self._told_to_stop(place)
        self._tree.places.remove(place)

    async def _told_to_stop(self, place):
        status = await place.stop()
        if status != 0:
            self._tree.trouble.append(f"{place.name}, told to stop, ended with {status}")

    async def _node_is_killed(self, node):
        kafka = self._tree.kafka
        await asyncio.to_thread(kafka.kill, node)
        await asyncio.sleep(self._rng.uniform(*NODE_DOWN_S))
        kafka.start_again()
        await self._node_serves(node)

    async def _node_pauses(self, node):
        self._tree.kafka.signal(node, signal.SIGSTOP)
        try:
            await asyncio.sleep(self._rng.uniform(0.5, 5))
        finally:
            self._tree.kafka.signal(node, signal.SIGCONT)
        await self._node_serves(node)

    async def _node_serves(self, node):
        end = time.monotonic() + NODE_BACK_S
        while not await asyncio.to_thread(self._tree.kafka.serves, node):
            assert time.monotonic() < end, f"node {node} does not serve {NODE_BACK_S:.0f} s after its fault"
            await asyncio.sleep(0.3)
        await asyncio.sleep(2)  # the copies catch up
        self._node_busy = False


async def roll(tree, times, campaign):
    """Restart all processes ``times`` times, one by one in ``UPGRADE_ORDER``. Return a ``Fault`` for each restart."""
    faults = []
    for _ in range(times):
        for place in [place for service in UPGRADE_ORDER for place in tree.live(service)]:
            place.busy = True
            faults.append(Fault(f"roll {place.service}", campaign.open_readers))
            if await place.stop() != 0:
                tree.trouble.append(f"{place.name}, told to stop, did not end well")
            await place.start()
            place.busy = False
            faults[-1].over()
            await comes_true(lambda fault=faults[-1]: fault.open <= 0, 10)
    return faults
