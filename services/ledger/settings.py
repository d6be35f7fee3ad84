from dataclasses import dataclass, field, replace
from pathlib import Path

from services.books import BooksConfig, Objectives, parse_plain_token_ms
from services.bus import BusSettings
from services.runtime.classes.policy_deadlines import DEFAULT_POLICY
from services.runtime.classes.service_classes import CHAT, Slo, read_service_classes
from services.runtime.errors import UserError
from services.runtime.health import HealthSettings
from services.runtime.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the ledger: windows, objectives, prices.

    Attributes:
        ledger_group: Consumer group, and prefix of the state topic. With another name, the ledger starts new sums.
        ledger_window_s: Width of a window, in seconds. Stored sums have the width that they were made with, so another
            width needs another ``ledger_group``.
        ledger_keep_s: Time after a window's end for which late accounts still count, in seconds.
        ledger_show_s: Time for which ``GET /ledger`` shows a window, in seconds.
        policy: Folder of the policy, which has the objectives.
        ledger_slo_first_ms: Objective for the time to first text in the class ``chat``, in milliseconds. It overrides
            the policy's objective.
        ledger_slo_total_ms: Objective for the time of the whole answer in the class ``chat``, in milliseconds. It
            overrides the policy's objective.
        ledger_plain_token_ms: Milliseconds between two tokens without speculation. ``8.5`` is for all models,
            ``A=8.5,B=4`` for the models A and B. If not set, the time saved by speculation is not computed.
        ledger_usd_per_engine_s: Price in US dollars of one second of one request on a self-hosted engine.
        ledger_instance: Unique name of this ledger. It avoids a rebalance after a quick restart.
        ledger_data_dir: Folder for Faust's own files, which may be deleted; by default a temporary folder.
    """

    ledger_group: str = setting("ledger", "consumer group, and prefix of the name of the ledger's state topic")
    ledger_window_s: int = setting(
        60, "width of a window in seconds; another width needs another RAILBUS_LEDGER_GROUP", ge=1, le=86_400
    )
    # The ledger remembers each request, with about 1 KB, until this time after its window's end.
    ledger_keep_s: int = setting(
        600,
        "time after a window's end during which late accounts and receipts still count, in seconds",
        ge=1,
        le=86_400,
    )
    ledger_show_s: int = setting(86_400, "how long GET /ledger shows a window, in seconds", ge=60, le=30 * 86_400)
    policy: Path = field(default=DEFAULT_POLICY, metadata={"help": "folder of the policy"})
    ledger_slo_first_ms: float | None = setting(
        None, "objective for the time to first text in the class chat, instead of the policy's", ge=1, le=3_600_000
    )
    ledger_slo_total_ms: float | None = setting(
        None,
        "objective for the time of the whole answer in the class chat, instead of the policy's",
        ge=1,
        le=86_400_000,
    )
    ledger_plain_token_ms: str = setting(
        "", "milliseconds between two tokens without speculation: 8.5 for all models, or A=8.5,B=4"
    )
    ledger_usd_per_engine_s: float = setting(
        0.0, "price in US dollars of one second of one request on a self-hosted engine", ge=0, le=1_000
    )
    ledger_instance: str | None = setting(
        None, "unique name of this ledger, so that a quick restart causes no rebalance"
    )
    ledger_data_dir: Path | None = field(
        default=None,
        metadata={"help": "folder for Faust's own files, which may be deleted; if not set, a temporary folder"},
    )
    bus: BusSettings = field(default_factory=BusSettings)
    health: HealthSettings = field(default_factory=HealthSettings)

    def _objectives(self) -> dict[str, Objectives]:
        found = {each.name: _objectives_of(each.slo) for each in read_service_classes(self.policy)}
        given = {"first_ms": self.ledger_slo_first_ms, "total_ms": self.ledger_slo_total_ms}
        found[CHAT] = replace(found[CHAT], **{name: ms for name, ms in given.items() if ms is not None})
        return found

    def config(self) -> BooksConfig:
        """Convert the settings to a ``BooksConfig``.

        Raises:
            UserError: A value cannot be read.
        """
        try:
            plain_token_ms = parse_plain_token_ms(self.ledger_plain_token_ms)
        except ValueError:
            raise UserError(
                f"RAILBUS_LEDGER_PLAIN_TOKEN_MS={self.ledger_plain_token_ms!r}: must be milliseconds such as 8.5, or"
                " MODEL=8.5,MODEL=4"
            ) from None
        return BooksConfig(
            window_s=self.ledger_window_s,
            keep_s=self.ledger_keep_s,
            show_s=self.ledger_show_s,
            objectives=self._objectives(),
            wanted_shares={each.name: each.slo.share for each in read_service_classes(self.policy)},
            plain_token_ms=plain_token_ms,
            usd_per_engine_s=self.ledger_usd_per_engine_s,
        )


def _objectives_of(slo: Slo) -> Objectives:
    asked = (slo.first_token, slo.inter_token, slo.step, slo.total)
    first, token, step, total = (None if one is None else one.ms for one in asked)
    return Objectives(first_ms=first, token_ms=token, step_ms=step, total_ms=total)
