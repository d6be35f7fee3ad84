"""Decide whether and when a service that ended by itself is started again. Pure functions."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartAfter:
    """The decision to start a service again after this many seconds."""

    after_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The decision not to start a service again, because it ended ``times`` times within ``within_s`` seconds."""

    times: int
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Limits and waits between restarts, in seconds.

    Attributes:
        first_s: Wait before the first restart.
        longest_s: Maximum wait. The wait doubles each time the service ends again within ``within_s``.
        most: Number of ends within ``within_s`` after which the service is not started again.
        within_s: Period in which ends are counted.
    """

    first_s: float = 0.2
    longest_s: float = 5.0
    most: int = 6
    within_s: float = 60.0

    def decide(self, ends: list[float], now: float) -> RestartAfter | GiveUp:
        """Decide at the time ``now`` whether and when to start the service again.

        ``ends`` has all times at which the service ended, including the end that is decided about.
        """
        recent = sum(1 for end in ends if now - end < self.within_s)
        if recent >= self.most:
            return GiveUp(recent, self.within_s)
        return RestartAfter(min(self.longest_s, self.first_s * 2.0 ** (recent - 1)))


def describe_exit(code: int) -> str:
    """Describe an exit status: ``exit code 1``, or ``signal 9`` for a negative one."""
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
