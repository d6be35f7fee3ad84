import asyncio

import pytest

from services.bus.write.byte_semaphore import ByteSemaphore


async def test_waiters_go_in_order_and_nobody_overtakes() -> None:
    budget = ByteSemaphore(10)
    assert budget.try_acquire(8)
    order: list[str] = []

    async def acquire(name: str, n: int) -> None:
        await budget.acquire(n)
        order.append(name)

    big = asyncio.create_task(acquire("big", 9))
    small = asyncio.create_task(acquire("small", 1))
    await asyncio.sleep(0)
    assert not budget.try_acquire(1), "others wait already"
    budget.release(8)
    await asyncio.gather(big, small)
    assert order == ["big", "small"]


async def test_a_waiter_that_gives_up_leaves_no_hole() -> None:
    budget = ByteSemaphore(10)
    assert budget.try_acquire(10)
    first = asyncio.create_task(budget.acquire(10))
    second = asyncio.create_task(budget.acquire(5))
    await asyncio.sleep(0)
    first.cancel()
    budget.release(5)
    await second
    assert not budget.try_acquire(1)
    budget.release(10)
    assert budget.try_acquire(10)


async def test_a_waiter_that_gives_up_in_the_moment_of_its_turn_gives_back() -> None:
    budget = ByteSemaphore(10)
    assert budget.try_acquire(10)
    waiter = asyncio.create_task(budget.acquire(10))
    await asyncio.sleep(0)
    budget.release(10)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert budget.try_acquire(10)


async def test_more_than_the_whole_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="more than the limit"):
        await ByteSemaphore(10).acquire(11)
