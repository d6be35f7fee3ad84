"""Simulated hosts, each with its own clock, and processes that can be paused, killed, or cut off from the broker."""

from collections.abc import Callable
from heapq import heappush
from typing import Final

from services.simulator.simulation import MS, Action, Simulation


class Host:
    """A machine with a monotonic clock and a time-of-day clock that can be set. Both clocks drift."""

    __slots__ = ("_simulation", "_skew_us", "began_us", "drift_ppm")

    def __init__(self, simulation: Simulation, skew_us: int = 0, drift_ppm: int = 0) -> None:
        self._simulation = simulation
        self._skew_us = skew_us
        self.drift_ppm = drift_ppm
        self.began_us = simulation.now_us

    @property
    def now_us(self) -> int:
        return self.monotonic_at_us(self._simulation.now_us) + self._skew_us

    def monotonic_at_us(self, true_us: int) -> int:
        return true_us + (true_us - self.began_us) * self.drift_ppm // 1_000_000

    def step(self, by_us: int) -> None:
        self._skew_us += by_us


class SimulatedProcess:
    """A process that can be paused, killed, slowed down, or cut off from the broker.

    A pause delays the timers of the process and the broker's responses. A kill drops them.

    Attributes:
        cut: Whether the process is cut off from the broker. Its calls to the broker wait until the cut ends.
        slow: Factor for the network delays of its calls to the broker.
        undisturbed: Whether the process is alive and neither paused nor cut off.
    """

    __slots__ = (
        "_began_us", "_blocked", "_deferred", "_drift_ppm", "_offset_us", "alive", "calm_us", "cut", "host",
        "loses_requests", "name", "on_reachable", "on_unreachable", "paused", "reached_us", "simulation", "slow",
        "undisturbed",
    )  # fmt: skip

    def __init__(self, simulation: Simulation, name: str, host: Host) -> None:
        self.simulation = simulation
        self.name = name
        self.host = host
        self.reached_us = simulation.now_us  # since when the broker can reach the process
        self._offset_us = host.now_us - host.monotonic_at_us(simulation.now_us)
        self._drift_ppm, self._began_us = host.drift_ppm, host.began_us
        self.alive = True
        self.paused = False
        self.cut = False
        self.undisturbed = True
        self.slow = 1
        self.calm_us = simulation.now_us  # end of the last pause, cut or slow period
        self.loses_requests = False
        self.on_reachable: list[Callable[[], None]] = []
        self.on_unreachable: list[Callable[[], None]] = []
        self._deferred: list[tuple[Action, tuple[object, ...]]] = []
        self._blocked: list[tuple[Action, tuple[object, ...]]] = []

    @property
    def reachable(self) -> bool:
        return self.undisturbed

    @property
    def now_us(self) -> int:
        """Current time of this process. It does not jump when the host's clock is set."""
        true_us = self.simulation.now_us
        return true_us + (true_us - self._began_us) * self._drift_ppm // 1_000_000 + self._offset_us

    def steady_at_us(self, true_us: int) -> int:
        return true_us + (true_us - self._began_us) * self._drift_ppm // 1_000_000 + self._offset_us

    def note(self, what: str) -> None:
        self.simulation.note(self.name, what)

    def after(self, delay_us: int, action: Action, *args: object) -> None:
        simulation = self.simulation
        at_us = simulation.now_us + delay_us
        heappush(simulation.heap, (at_us, simulation.next_order(), action, args, self, FIRE))

    def fire(self, action: Action, *args: object) -> None:
        """Run an action now or, if the process is paused, when the pause ends. Do nothing if the process was killed."""
        if not self.alive:
            return
        if self.paused:
            self._deferred.append((action, args))
        else:
            action(*args)

    def ask(self, action: Action, *args: object) -> None:
        """Run an action at the broker after a random network delay."""
        simulation = self.simulation
        at_us = simulation.now_us + (300 + int(simulation.random() * 2_700)) * self.slow
        heappush(simulation.heap, (at_us, simulation.next_order(), action, args, self, ARRIVE))

    def arrive(self, action: Action, *args: object) -> None:
        """Run an action at the broker. If the broker cannot be reached, wait until it can."""
        if self.cut:
            self._blocked.append((action, args))
        elif self.alive or not self.loses_requests:
            simulation = self.simulation
            if simulation.away:
                simulation.at_broker(action, args)
            else:
                action(*args)

    def speed_up(self) -> None:
        if self.slow != 1:
            self.slow = 1
            self.calm_us = self.simulation.now_us

    def pause(self) -> None:
        self.paused, self.undisturbed = True, False
        self._tell(self.on_unreachable)

    def resume(self) -> None:
        self.paused, self.undisturbed = False, self.alive and not self.cut
        deferred, self._deferred = self._deferred, []
        for action, args in deferred:
            self.simulation.after(0, self.fire, action, *args)
        if self.reachable:
            self.reached_us = self.calm_us = self.simulation.now_us
            self._tell(self.on_reachable)

    def cut_off(self) -> None:
        self.cut, self.undisturbed = True, False
        self._tell(self.on_unreachable)

    def heal(self) -> None:
        self.cut, self.undisturbed = False, self.alive and not self.paused
        blocked, self._blocked = self._blocked, []
        for action, args in blocked:
            self.simulation.after(self.simulation.between(1 * MS, 20 * MS), self.arrive, action, *args)
        if self.reachable:
            self.reached_us = self.calm_us = self.simulation.now_us
            self._tell(self.on_reachable)

    def kill(self, *, loses_requests: bool) -> None:
        """End the process. The calls that it held back while it was cut off from the broker are lost.

        With ``loses_requests``, the calls that are on the way to the broker are lost, too.
        """
        self.alive = self.undisturbed = False
        self.loses_requests = loses_requests
        self._deferred.clear()
        self._blocked.clear()
        self._tell(self.on_unreachable)

    def _tell(self, listeners: list[Callable[[], None]]) -> None:
        for listener in listeners:
            listener()


FIRE: Final = SimulatedProcess.fire
"""The ``Gate`` for actions that run in a process. They wait while the process is paused."""

ARRIVE: Final = SimulatedProcess.arrive
"""The ``Gate`` for actions that a process runs at the broker. They wait while the process cannot reach the broker."""
