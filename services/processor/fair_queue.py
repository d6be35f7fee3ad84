from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue that hands out the items of the tenants in rotation. The items of one tenant keep their order.

    The length of the queue is not limited.
    """

    __slots__ = ("_by_tenant", "_count")

    def __init__(self) -> None:
        self._by_tenant: dict[str, deque[T]] = {}  # the next tenant first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def waiting(self, tenant: str) -> int:
        return len(self._by_tenant.get(tenant, ()))

    def put(self, tenant: str, item: T) -> None:
        queue = self._by_tenant.get(tenant)
        if queue is None:
            queue = self._by_tenant[tenant] = deque()
        queue.append(item)
        self._count += 1

    def get(self, busy: Container[str] = ()) -> tuple[str, T] | None:
        """Remove and return one item of the next tenant that is not in ``busy``; None if there is none."""
        for tenant in self._by_tenant:
            if tenant not in busy:
                break
        else:
            return None
        queue = self._by_tenant.pop(tenant)
        item = queue.popleft()
        if queue:
            self._by_tenant[tenant] = queue  # behind all other tenants
        self._count -= 1
        return tenant, item

    def turn(self, max_items: int) -> tuple[str, list[T]] | None:
        """Remove and return the oldest items of the next tenant; None if the queue is empty.

        ``max_items`` is the maximum number of items.
        """
        if not self._by_tenant:
            return None
        tenant = next(iter(self._by_tenant))
        queue = self._by_tenant.pop(tenant)
        if len(queue) <= max_items:
            items = list(queue)
        else:
            items = [queue.popleft() for _ in range(max_items)]
            self._by_tenant[tenant] = queue
        self._count -= len(items)
        return tenant, items

    def put_back(self, tenant: str, items: Sequence[T]) -> None:
        """Put items back at the front of the tenant's queue. All other tenants get their turn before this tenant."""
        queue = self._by_tenant.pop(tenant, None) or deque()
        queue.extendleft(reversed(items))
        if queue:
            self._by_tenant[tenant] = queue
        self._count += len(items)

    def retain(self, keep: Callable[[T], bool]) -> None:
        kept = {tenant: deque(filter(keep, queue)) for tenant, queue in self._by_tenant.items()}
        self._by_tenant = {tenant: queue for tenant, queue in kept.items() if queue}
        self._count = sum(map(len, self._by_tenant.values()))

    def clear(self) -> None:
        self._by_tenant.clear()
        self._count = 0
