"""Collect the latest recalls and circuit breaker states, for the page at ``/ledger``.

The recalls and states are read from accounts, the summaries of requests on ``railbus.accounts``.
"""

from collections import deque
from typing import Any, Final, NamedTuple

from schemas.side_events import Account, BreakerState

MOST_RECALLS: Final = 20
"""Maximum number of recalls kept for a tenant, and maximum number in a report. The newest recalls are chosen."""

MOST_TENANTS: Final = 1_000
MOST_ROUTERS: Final = 100

_WORST: Final[tuple[BreakerState, ...]] = ("open", "half_open", "closed")


class _Recall(NamedTuple):
    at: int
    tenant: str
    request_id: str
    action: str
    category: str
    rule: str


class Activity:
    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._recalls: dict[str, deque[_Recall]] = {}
        self._breakers: dict[str, tuple[int, BreakerState]] = {}
        self._seen: dict[str, None] = {}

    def take(self, account: Account, now_us: int) -> None:
        if account.breaker is not None:
            at = min(account.at, now_us)
            if at >= self._breakers.get(account.source, (0, ""))[0]:
                self._breakers.pop(account.source, None)
                self._breakers[account.source] = at, account.breaker
                _drop_first(self._breakers, MOST_ROUTERS)
        if account.check is None or not account.check.recalls or account.request_id in self._seen:
            return
        self._seen[account.request_id] = None
        _drop_first(self._seen, MOST_TENANTS * MOST_RECALLS)
        recalls = self._recalls.pop(account.tenant, None) or deque(maxlen=MOST_RECALLS)
        self._recalls[account.tenant] = recalls
        _drop_first(self._recalls, MOST_TENANTS)
        for each in account.check.recalls:
            about = account.tenant, account.request_id
            recalls.append(_Recall(min(each.appended_at, now_us), *about, each.action, each.category, each.rule))

    def recalls(self, tenant: str | None, since_at: int) -> list[dict[str, Any]]:
        """Return at most ``MOST_RECALLS`` recalls after ``since_at`` (microseconds since the epoch), newest first.

        A recall takes back text of an answer. If ``tenant`` is None, the recalls of all tenants are included.
        """
        chosen = self._recalls.values() if tenant is None else [self._recalls.get(tenant, ())]
        found = sorted((recall for each in chosen for recall in each if recall.at > since_at), reverse=True)
        return [recall._asdict() for recall in found[:MOST_RECALLS]]

    def breaker(self, since_at: int) -> dict[str, Any] | None:
        """Return the worst state of the routers' circuit breakers, and the number of routers in this state.

        States that were reported before ``since_at`` are ignored. If none was reported since then, return None.
        """
        states = [(state, at) for at, state in self._breakers.values() if at > since_at]
        for worst in _WORST:
            same = [at for state, at in states if state == worst]
            if same:
                return {"state": worst, "at": max(same), "routers": len(same), "of_routers": len(states)}
        return None


def _drop_first(items: dict[str, Any], most: int) -> None:
    while len(items) > most:
        del items[next(iter(items))]
