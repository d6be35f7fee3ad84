"""What the ledger's sums depend on beside the events: the operator's objectives, prices and calibrations."""

from collections.abc import Mapping
from dataclasses import dataclass, field

US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BooksConfig:
    """The operator's choices.

    Attributes:
        window_s: Width of a window.
        keep_s: How long after its end a window still takes late and repeated events, by the broker's clock. Until then
            the ledger remembers every request of the window.
        show_s: How long a window's sums are kept after its end.
        slo_first_ms: Objective for the first visible text of an interactive request.
        slo_total_ms: Objective for its whole answer.
        plain_token_ms: Time between two tokens without speculation, by model; "" stands for any other model.
        usd_per_engine_s: Price of one second of one request on a self-hosted engine: the GPU's price per second,
            divided by how many requests it usually has at once.
    """

    window_s: int = 60
    keep_s: int = 600
    show_s: int = 86_400
    slo_first_ms: float = 200.0
    slo_total_ms: float = 2_000.0
    plain_token_ms: Mapping[str, float] = field(default_factory=dict)
    usd_per_engine_s: float = 0.0

    def window_start_s(self, at_us: int) -> int:
        """Return where the window begins that holds this time."""
        return at_us // US_PER_S // self.window_s * self.window_s

    def plain_ms(self, model: str | None) -> float | None:
        """Return the plain time between two tokens of a model; None where nobody measured it."""
        return self.plain_token_ms.get(model or "", self.plain_token_ms.get(""))


def parse_plain_token_ms(text: str) -> dict[str, float]:
    """Read ``8.5`` or ``MODEL=8.5,MODEL=4``; an empty text gives nothing.

    Raises:
        ValueError: It is neither.
    """
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        model, _, number = part.rpartition("=")
        value = float(number)
        if not 0 < value < 60_000:
            raise ValueError(part)
        found[model.strip()] = value
    return found
