from hypothesis import given
from hypothesis import strategies as st

from services.cli.tree.restarts import GiveUp, RestartAfter, RestartPolicy, describe_exit

POLICY = RestartPolicy(first_s=0.2, longest_s=5.0, most=6, within_s=60.0)


def test_the_wait_doubles_with_every_recent_end():
    waits = [POLICY.decide([100.0] * n, 100.0) for n in range(1, 7)]
    assert waits == [
        RestartAfter(0.2),
        RestartAfter(0.4),
        RestartAfter(0.8),
        RestartAfter(1.6),
        RestartAfter(3.2),
        GiveUp(6, 60.0),
    ]


def test_old_ends_are_forgotten():
    assert POLICY.decide([0.0, 10.0, 20.0, 100.0], 100.0) == RestartAfter(0.2)
    assert POLICY.decide([40.0, 100.0], 100.0) == RestartAfter(0.2)
    assert POLICY.decide([40.1, 100.0], 100.0) == RestartAfter(0.4)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.integers(1, 50))
def test_waits_are_bounded_and_it_gives_up_only_after_many(moments, most):
    policy = RestartPolicy(most=most)
    ends = sorted(moments)
    decision = policy.decide(ends, ends[-1])
    if isinstance(decision, RestartAfter):
        assert policy.first_s <= decision.after_s <= policy.longest_s
    else:
        assert most <= decision.times <= len(ends)


def test_an_end_in_words():
    assert describe_exit(1) == "exit code 1"
    assert describe_exit(-9) == "signal 9"
