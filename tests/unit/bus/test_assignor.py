"""Test that members get even shares of the partitions, and that no partition moves without need.

The order of members and partitions makes no difference.
"""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.bus.groups.assignor import OwnedPartitions, StickyNumberAssignor, handovers, sticky_assignment

MEMBERS = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.builds(OwnedPartitions, st.integers(-1, 9), st.frozensets(st.integers(0, 20), max_size=20)),
    min_size=1,
    max_size=8,
)


@given(st.integers(0, 20), MEMBERS)
def test_every_number_has_one_owner_and_shares_differ_by_one_at_most(
    count: int, claims: dict[str, OwnedPartitions]
) -> None:
    shares = sticky_assignment(range(count), claims)
    assert sorted(number for share in shares.values() for number in share) == list(range(count))
    sizes = sorted(map(len, shares.values()))
    assert sizes[-1] - sizes[0] <= 1
    assert sticky_assignment(reversed(range(count)), dict(reversed(claims.items()))) == shares


@given(st.integers(1, 32), st.integers(1, 6), st.data())
def test_nobody_who_stays_loses_more_than_the_newcomers_share(count: int, members: int, data: Any) -> None:
    before = sticky_assignment(range(count), {f"m{n}": OwnedPartitions(-1, frozenset()) for n in range(members)})
    gone = data.draw(st.sets(st.sampled_from(sorted(before)), max_size=members - 1))
    new = data.draw(st.integers(0, 3))
    claims = {member: OwnedPartitions(3, frozenset(share)) for member, share in before.items() if member not in gone}
    claims |= {f"new{n}": OwnedPartitions(-1, frozenset()) for n in range(new)}
    after = sticky_assignment(range(count), claims)
    most = -(-count // len(claims))
    for member, claim in claims.items():
        assert len(claim.numbers - after[member]) <= max(0, len(claim.numbers) - count // len(claims))
        assert len(after[member]) <= most
    if not new:
        assert all(claim.numbers <= after[member] for member, claim in claims.items()), "nothing moves that need not"


def test_a_member_that_the_group_forgot_yields_to_the_one_that_holds_now() -> None:
    both = {"a": OwnedPartitions(-1, frozenset({0, 1})), "b": OwnedPartitions(7, frozenset({0, 1, 2, 3}))}
    assert sticky_assignment(range(4), both) == {"b": {0, 1}, "a": {2, 3}}


class Cluster:
    def partitions_for_topic(self, topic: str) -> set[int]:
        return set(range(1 if topic == "single" else 4))


def test_a_topic_that_metadata_lacks_for_a_moment_keeps_its_partitions() -> None:
    class Lacking:
        def partitions_for_topic(self, topic: str) -> set[int] | None:
            return None if topic == "u" else {0, 1, 2, 3}

    assignor = StickyNumberAssignor(lambda: OwnedPartitions(1, frozenset()), {"t": 4, "u": 4})
    members = {"one": assignor.metadata(["t", "u"])}
    for _ in range(2):
        assert assignor.assign(Lacking(), members)["one"].assignment == [("t", [0, 1, 2, 3]), ("u", [0, 1, 2, 3])]


def test_a_member_gets_its_numbers_of_every_topic_it_reads() -> None:
    claims = {"one": OwnedPartitions(1, frozenset({3, 0})), "two": OwnedPartitions(1, frozenset({1, 2})), "old": None}
    members = {
        member: StickyNumberAssignor(lambda claim=claim: claim).metadata(["t", "u", "single"])
        for member, claim in claims.items()
        if claim is not None
    }
    dealt = StickyNumberAssignor(lambda: OwnedPartitions(-1, frozenset())).assign(Cluster(), members)
    assert dict(dealt["one"].assignment) == {"single": [0], "t": [0, 3], "u": [0, 3]}
    assert dict(dealt["two"].assignment) == {"single": [], "t": [1, 2], "u": [1, 2]}


HANDING_OVER = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.builds(OwnedPartitions, st.integers(-1, 3), st.frozensets(st.integers(0, 12), max_size=12), st.booleans()),
    min_size=1,
    max_size=6,
)


@given(st.integers(1, 12), HANDING_OVER)
def test_a_number_moves_from_a_member_that_hands_over_only_through_nobody(
    count: int, claims: dict[str, OwnedPartitions]
) -> None:
    members = {member: StickyNumberAssignor(lambda c=claim: c).metadata(["t"]) for member, claim in claims.items()}
    dealt = StickyNumberAssignor(lambda: OwnedPartitions(-1, frozenset())).assign(Topics(count), members)
    moving = handovers(sticky_assignment(range(count), claims), claims)
    got = {member: {n for _, numbers in dealt[member].assignment for n in numbers} for member in claims}
    for member, claim in claims.items():
        told = StickyNumberAssignor(lambda c=claim: c)
        told.on_assignment(dealt[member])
        assert told.handing_over == moving.get(member, set())
        assert told.unfinished == bool(moving)
        assert told.handing_over <= claim.numbers, "it can hand over only what it has"
        assert not told.handing_over & got[member]
    nobodys = set().union(*moving.values())
    assert sorted(n for share in got.values() for n in share) == sorted(set(range(count)) - nobodys)
    # If a member hands over, each of its numbers of the latest generation stays with it or goes to nobody.
    latest = max(claim.generation for claim in claims.values())
    for member, claim in claims.items():
        others = set().union(*(o.numbers for m, o in claims.items() if m != member and o.generation == latest))
        if claim.hands_over and claim.generation == latest > 0:
            mine = {n for n in claim.numbers if n < count} - others
            assert mine <= got[member] | nobodys


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 3))
def test_the_second_rebalance_ends_the_move(count: int, members: int, new: int) -> None:
    first = sticky_assignment(range(count), {f"m{n}": OwnedPartitions(-1, frozenset()) for n in range(members)})
    claims = {member: OwnedPartitions(2, frozenset(share), hands_over=True) for member, share in first.items()}
    claims |= {f"new{n}": OwnedPartitions(-1, frozenset(), hands_over=True) for n in range(new)}
    wanted = sticky_assignment(range(count), claims)
    moving = handovers(wanted, claims)
    nobodys = set().union(*moving.values())
    again = {
        member: OwnedPartitions(3, frozenset(share - nobodys), hands_over=True) for member, share in wanted.items()
    }
    final = sticky_assignment(range(count), again)
    assert not handovers(final, again)
    assert sorted(n for share in final.values() for n in share) == list(range(count))


def test_an_older_member_reads_the_mark_as_a_number_that_no_topic_has() -> None:
    data = (
        StickyNumberAssignor(lambda: OwnedPartitions(4, frozenset({1, 2}), hands_over=True)).metadata(["t"]).user_data
    )
    numbers = {int.from_bytes(data[at : at + 4], "big", signed=True) for at in range(4, len(data), 4)}
    assert numbers == {-1, 1, 2}
    assert sticky_assignment(range(4), {"old": OwnedPartitions(4, frozenset(numbers))})["old"] == {0, 1, 2, 3}


class Topics:
    def __init__(self, count: int) -> None:
        self._count = count

    def partitions_for_topic(self, _topic: str) -> set[int]:
        return set(range(self._count))
