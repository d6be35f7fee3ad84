"""The ledger's settings: windows, latency objectives and prices."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.requests import Lane

US_PER_S = 1_000_000

DEFAULT_SHARE = 0.99
"""Share of the requests of a class that must be good, if its policy says nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """The latency objectives of a class. Each is a maximum in milliseconds; None means no limit.

    Attributes:
        first_ms: Time from the arrival of the request until its first text is visible.
        token_ms: Mean time between two tokens of the answer.
        step_ms: Longest time between two chunks of the answer.
        total_ms: Time from the arrival of the request until the client has the whole answer.
    """

    first_ms: float | None = None
    token_ms: float | None = None
    step_ms: float | None = None
    total_ms: float | None = None

    @property
    def any(self) -> bool:
        return self != Objectives()

    def kept(self, first_us: int | None, token_us: float | None, pause_us: int, total_us: int | None) -> bool:
        """Return whether the times of a request meet all objectives.

        If ``first_us`` or ``total_us`` is None, its objective is not met.
        """
        # ``token_us`` is None if the answer has fewer than two tokens.
        return (
            (self.first_ms is None or (first_us is not None and first_us <= self.first_ms * 1_000))
            and (self.token_ms is None or token_us is None or token_us <= self.token_ms * 1_000)
            and (self.step_ms is None or pause_us <= self.step_ms * 1_000)
            and (self.total_ms is None or (total_us is not None and total_us <= self.total_ms * 1_000))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BooksConfig:
    """The settings of the ledger.

    Attributes:
        window_s: Length of a window, in seconds.
        keep_s: Time after a window's end for which its late ``Account`` events still count, in seconds.
        show_s: Time for which a window can be shown, in seconds. Its sums are deleted afterwards.
        objectives: Latency objectives, by class.
        wanted_shares: Share of the requests that must meet all objectives, by class. The default is 0.99.
        slo_first_ms: Default of ``Objectives.first_ms`` for interactive requests.
        slo_total_ms: Default of ``Objectives.total_ms`` for interactive requests.
        plain_token_ms: Milliseconds per token without speculative decoding, by model. The key "" is for all other
            models.
        usd_per_engine_s: Price of one second of one request on a self-hosted engine, in US dollars.
    """

    window_s: int = 60
    keep_s: int = 600
    show_s: int = 86_400
    objectives: Mapping[str, Objectives] = field(default_factory=dict)
    wanted_shares: Mapping[str, float] = field(default_factory=dict)
    slo_first_ms: float = 200.0
    slo_total_ms: float = 2_000.0
    plain_token_ms: Mapping[str, float] = field(default_factory=dict)
    usd_per_engine_s: float = 0.0

    def window_start_s(self, at_us: int) -> int:
        """Return the start, in seconds since the epoch, of the window that contains ``at_us``."""
        return at_us // US_PER_S // self.window_s * self.window_s

    def objectives_of(self, service_class: str | None, lane: Lane) -> Objectives:
        """Return the objectives of a class; if it has none of its own, return the defaults of its lane."""
        found = self.objectives.get(service_class or "")
        if found is not None:
            return found
        return Objectives() if lane == "batch" else Objectives(first_ms=self.slo_first_ms, total_ms=self.slo_total_ms)

    def wanted_share_of(self, service_class: str | None, lane: Lane) -> float | None:
        """Return how large a share of a class's requests must meet its objectives; None if it has no objectives."""
        if not self.objectives_of(service_class, lane).any:
            return None
        return self.wanted_shares.get(service_class or "", DEFAULT_SHARE)

    def plain_ms(self, model: str | None) -> float | None:
        """Return how many milliseconds a model takes per token if it does not speculate; None if this is not known."""
        return self.plain_token_ms.get(model or "", self.plain_token_ms.get(""))


def parse_plain_token_ms(text: str) -> dict[str, float]:
    """Parse the time per token of each model, in milliseconds. A number without a model is for all other models.

    ``"A=8.5,B=4.5,9"`` -> ``{"A": 8.5, "B": 4.5, "": 9.0}``

    Raises:
        ValueError: A part of the text has another form, or a time is not between 0 and 60,000 ms.
    """
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        model, _, number = part.rpartition("=")
        value = float(number)
        if not 0 < value < 60_000:
            raise ValueError(part)
        found[model.strip()] = value
    return found
