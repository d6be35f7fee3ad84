import asyncio

import pytest

from services.bus.budget import Budget


async def test_waiters_go_in_order_and_nobody_overtakes() -> None:
    budget = Budget(10)
    assert budget.try_take(8)
    order: list[str] = []

    async def take(name: str, n: int) -> None:
        await budget.take(n)
        order.append(name)

    big = asyncio.create_task(take("big", 9))
    small = asyncio.create_task(take("small", 1))
    await asyncio.sleep(0)
    assert not budget.try_take(1), "others wait already"
    budget.give(8)
    await asyncio.gather(big, small)
    assert order == ["big", "small"]


async def test_a_waiter_that_gives_up_leaves_no_hole() -> None:
    budget = Budget(10)
    assert budget.try_take(10)
    first = asyncio.create_task(budget.take(10))
    second = asyncio.create_task(budget.take(5))
    await asyncio.sleep(0)
    first.cancel()
    budget.give(5)
    await second
    assert not budget.try_take(1)
    budget.give(10)
    assert budget.try_take(10)


async def test_a_waiter_that_gives_up_in_the_moment_of_its_turn_gives_back() -> None:
    budget = Budget(10)
    assert budget.try_take(10)
    waiter = asyncio.create_task(budget.take(10))
    await asyncio.sleep(0)
    budget.give(10)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert budget.try_take(10)


async def test_more_than_the_whole_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="more than the whole budget"):
        await Budget(10).take(11)
