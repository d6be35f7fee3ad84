"""What is said of one run: recalls for its findings, each once, and clearances. Pure."""

from schemas.base import run_envelope
from schemas.stream import Cleared
from services.policy import Policy, Ruling
from services.safety.lookout import Lookout, Pending
from services.safety.looks import Out, Spot
from services.safety.verdicts import RunKey, Stamp, recall, rule_on


class Judge:
    """Lets Rego decide what findings mean, and writes that down.

    Args:
        key: Whose text.
        policy: Its version.
        stamp: For the events.
    """

    __slots__ = ("_key", "_limit", "_policy", "_said", "_stamp")

    def __init__(self, key: RunKey, policy: Policy, stamp: Stamp) -> None:
        self._key = key
        self._policy = policy
        self._stamp = stamp
        self._limit = policy.document.safety.max_findings
        self._said: tuple[set[str], ...] = (set(), set(), set())  # recall ids by tier, at most the limit and one more

    def finding(self, tier: int, spot: Spot, outs: list[Out]) -> bool:
        """Say what the finding means. Returns whether it stops the answer."""
        ruling = rule_on(self._policy, self._key.tenant, spot.category, spot.rule, tier)
        return ruling.action != "flag" and self._say(ruling, spot, tier, outs)

    def window(self, lookout: Lookout, pending: Pending, spots: tuple[Spot, ...], outs: list[Out]) -> bool:
        """Say what the findings of a look mean, up to the first that stops. Returns whether one does."""
        for spot in sorted(spots, key=lambda spot: (spot.start, spot.end, spot.rule)):
            placed = _placed(lookout, pending, spot)
            if placed is not None and self.finding(lookout.tier, placed, outs):
                return True
        return False

    def unchecked(self, lookout: Lookout, pending: Pending, outs: list[Out]) -> bool:
        """A look came to no answer: not checked is not passed. Returns whether that stops the clearing."""
        rule = f"safety/tier{lookout.tier}"
        ruling = rule_on(self._policy, self._key.tenant, "unchecked", rule, lookout.tier)
        if ruling.action == "flag":
            return True  # policy wants no recall: the text stays uncleared
        start, end = lookout.unrecalled(rule, pending.start, pending.end)
        return start < end and self._say(ruling, Spot(rule, "unchecked", start, end), lookout.tier, outs)

    def cleared(self, seq: int, *, final: bool) -> Cleared:
        """The text is checked through this chunk."""
        key, stamp = self._key, self._stamp
        return Cleared(
            **run_envelope(key, at=stamp.now_us, source=stamp.source),
            seq=seq,
            final=final,
            policy_version=self._policy.version,
        )

    def _say(self, ruling: Ruling, spot: Spot, tier: int, outs: list[Out]) -> bool:
        said = self._said[tier]
        if len(said) >= self._limit:
            ruling, spot = Ruling(action="stop"), Spot("safety/flood", "flood", spot.start, spot.end)
        event = recall(
            self._key,
            self._policy,
            self._stamp,
            ruling,
            action="stop" if ruling.action == "stop" else "redact",
            rule=spot.rule,
            category=spot.category,
            span=(spot.start, spot.end),
        )
        said.add(event.recall_id)
        outs.append(event)  # the case leaves out what is on the log already
        return event.action == "stop"


def _placed(lookout: Lookout, pending: Pending, spot: Spot) -> Spot | None:
    """The spot in the run's text; None when an earlier look had it, or a later one will have it whole."""
    start, end = pending.start + spot.start, pending.start + spot.end
    if (start, end) == (pending.start, pending.end):  # the rail judged its window as a whole
        start, end = lookout.unrecalled(spot.rule, start, end)
    elif (start == pending.start > 0) or (end == pending.end and not pending.last):
        return None
    return Spot(spot.rule, spot.category, start, end) if start < end else None
