"""Whether and when a service that ended by itself is started again. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Again:
    """Start it again.

    Attributes:
        after_s: After this many seconds.
    """

    after_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It ends too often.

    Attributes:
        times: How often it ended by itself.
        within_s: In this many seconds.
    """

    times: int
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How patient the supervisor is; times in seconds.

    Attributes:
        first_s: Wait before the first restart.
        longest_s: The wait doubles with every recent end, up to this.
        most: Ends within ``within_s`` after which it gives up.
        within_s: How far back an end counts.
    """

    first_s: float = 0.2
    longest_s: float = 5.0
    most: int = 6
    within_s: float = 60.0

    def decide(self, ends: list[float], now: float) -> Again | GiveUp:
        """What to do at ``now``, when ``ends`` are the moments of all ends so far, this one included."""
        recent = sum(1 for end in ends if now - end < self.within_s)
        if recent >= self.most:
            return GiveUp(recent, self.within_s)
        return Again(min(self.longest_s, self.first_s * 2.0 ** (recent - 1)))


def describe_end(code: int) -> str:
    """An exit status in words: ``exit code 1``, or ``signal 9`` for a negative one."""
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
