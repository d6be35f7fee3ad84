"""Decide whether and when to restart a service that has exited. Pure functions."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartAfter:
    after_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    times: int
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Limits for restarts. Times are in seconds. Exits that are older than ``within_s`` are ignored.

    Attributes:
        first_s: Delay before the first restart. It doubles with each further exit.
        longest_s: Maximum delay before a restart.
        most: Number of exits after which a service is not restarted.
    """

    first_s: float = 0.2
    longest_s: float = 5.0
    most: int = 6
    within_s: float = 60.0

    def decide(self, ends: list[float], now: float) -> RestartAfter | GiveUp:
        """Decide whether and when to restart a service that exited at the times ``ends``."""
        recent = sum(1 for end in ends if now - end < self.within_s)
        if recent >= self.most:
            return GiveUp(recent, self.within_s)
        return RestartAfter(min(self.longest_s, self.first_s * 2.0 ** (recent - 1)))


def describe_exit(code: int) -> str:
    """Format an exit code, such as ``exit code 1``. A negative exit code is a signal, such as ``signal 9``."""
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
