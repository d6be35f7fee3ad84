"""A queue that takes tenants in turn, so that one with much work does not delay one with little. Pure."""

from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue that is first in, first out for each tenant; tenants take turns. The caller bounds it."""

    __slots__ = ("_by_tenant", "_count")

    def __init__(self) -> None:
        self._by_tenant: dict[str, deque[T]] = {}  # in the order of turns
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def waiting(self, tenant: str) -> int:
        """Return how many items the tenant has."""
        return len(self._by_tenant.get(tenant, ()))

    def put(self, tenant: str, item: T) -> None:
        """Add to the end of the tenant's queue."""
        queue = self._by_tenant.get(tenant)
        if queue is None:
            queue = self._by_tenant[tenant] = deque()
        queue.append(item)
        self._count += 1

    def get(self, busy: Container[str] = ()) -> tuple[str, T] | None:
        """Return the next item of the next tenant that is not in ``busy``; None if there is none."""
        for tenant in self._by_tenant:
            if tenant not in busy:
                break
        else:
            return None
        queue = self._by_tenant.pop(tenant)
        item = queue.popleft()
        if queue:
            self._by_tenant[tenant] = queue  # at the end of the turns
        self._count -= 1
        return tenant, item

    def turn(self, most: int) -> tuple[str, list[T]] | None:
        """Return up to ``most`` items of the next tenant; None if there is none."""
        if not self._by_tenant:
            return None
        tenant = next(iter(self._by_tenant))
        queue = self._by_tenant.pop(tenant)
        if len(queue) <= most:
            items = list(queue)
        else:
            items = [queue.popleft() for _ in range(most)]
            self._by_tenant[tenant] = queue
        self._count -= len(items)
        return tenant, items

    def put_back(self, tenant: str, items: Sequence[T]) -> None:
        """Put items back to the front of the tenant's queue; the other tenants have their turn first."""
        queue = self._by_tenant.pop(tenant, None) or deque()
        queue.extendleft(reversed(items))
        if queue:
            self._by_tenant[tenant] = queue
        self._count += len(items)

    def retain(self, keep: Callable[[T], bool]) -> None:
        """Drop the items for which ``keep`` returns false; the order of the turns stays."""
        kept = {tenant: deque(filter(keep, queue)) for tenant, queue in self._by_tenant.items()}
        self._by_tenant = {tenant: queue for tenant, queue in kept.items() if queue}
        self._count = sum(map(len, self._by_tenant.values()))

    def clear(self) -> None:
        self._by_tenant.clear()
        self._count = 0
