"""Decides whether and when a service that ended by itself is started again. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartAfter:
    """Start it again after this many seconds."""

    after_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not start it again, because it ended ``times`` times within ``within_s`` seconds."""

    times: int
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Limits and waits between restarts, in seconds.

    Attributes:
        first_s: Wait before the first restart.
        longest_s: Longest wait. The wait doubles with every recent end, up to this.
        most: Number of ends within ``within_s`` after which the service is not started again.
        within_s: Age up to which an end counts.
    """

    first_s: float = 0.2
    longest_s: float = 5.0
    most: int = 6
    within_s: float = 60.0

    def decide(self, ends: list[float], now: float) -> RestartAfter | GiveUp:
        """Decide at ``now``; ``ends`` are the times of all ends so far, this one included."""
        recent = sum(1 for end in ends if now - end < self.within_s)
        if recent >= self.most:
            return GiveUp(recent, self.within_s)
        return RestartAfter(min(self.longest_s, self.first_s * 2.0 ** (recent - 1)))


def describe_exit(code: int) -> str:
    """Describe an exit status: ``exit code 1``, or ``signal 9`` for a negative one."""
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
