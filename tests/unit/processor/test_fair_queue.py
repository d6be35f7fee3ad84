"""Test that tenants take turns, and that the items of each tenant keep their order."""

from services.processor.fair_queue import FairQueue


def test_a_tenant_with_much_work_waits_for_the_others_after_each_turn() -> None:
    queue = FairQueue[int]()
    for item in range(5):
        queue.put("a", item)
    queue.put("b", 9)
    assert [queue.turn(2) for _ in range(5)] == [("a", [0, 1]), ("b", [9]), ("a", [2, 3]), ("a", [4]), None]


def test_a_tenant_whose_turn_takes_all_of_its_items_is_forgotten() -> None:
    queue = FairQueue[int]()
    for item in range(2):
        queue.put("a", item)
    assert queue.turn(2) == ("a", [0, 1])
    assert (len(queue), queue.turn(2), queue.get()) == (0, None, None)


def test_what_is_kept_is_counted() -> None:
    queue = FairQueue[int]()
    for item in range(4):
        queue.put("a", item)
    queue.retain(lambda item: item > 2)
    assert (len(queue), queue.get(), len(queue)) == (1, ("a", 3), 0)
