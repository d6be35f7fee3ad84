"""Test that ``prefix_order`` puts prompts with the same beginning together, so that the prefix cache has more hits."""

import random
from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from services.jobs.prefix_order import LEVELS, WIDTH, prefix_key, prefix_order

BLOCK = 64
"""Size of a cache block in characters: 16 tokens of 4 characters."""


def blocks(prompt: str):
    """Yield one hash for each whole block of a prompt. The hash covers the block and all blocks before it."""
    chain = 0
    for end in range(BLOCK, len(prompt) + 1, BLOCK):
        chain = hash((chain, prompt[end - BLOCK : end]))
        yield chain


def cached_share(prompts, *, capacity: int, at_once: int) -> float:
    """Return the share of the prompts' blocks that are in an engine's prefix cache when they are needed.

    The cache holds ``capacity`` blocks, and evicts the least recently used ones. Prompts are computed in groups of
    ``at_once``. The prompts of a group cannot use each other's blocks.
    """
    cache, hits, total = OrderedDict(), 0, 0
    for begin in range(0, len(prompts), at_once):
        wave = [list(blocks(prompt)) for prompt in prompts[begin : begin + at_once]]
        for chain in wave:
            total += len(chain)
            hits += next((n for n, block in enumerate(chain) if block not in cache), len(chain))
        for chain in wave:
            for block in chain:
                cache[block] = None
                cache.move_to_end(block)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits / total


def possible_share(prompts) -> float:
    """Return the ``cached_share`` of the prompts with an unlimited cache and one prompt at a time.

    No other cache size, group size or order of the prompts gives a higher share.
    """
    return cached_share(prompts, capacity=10**9, at_once=1)


def seed_shape(groups: int, count: int, rng: random.Random) -> list[str]:
    """Return ``count`` prompts of 12,400 characters, in random order.

    The prompts form ``groups`` groups. The prompts of a group have the same first 10,000 characters, and differ in the
    other 2,400.
    """
    letters = "abcdefghijklmnopqrstuvwxyz "
    shared = ["".join(rng.choices(letters, k=10_000)) for _ in range(groups)]
    found = [shared[n % groups] + "".join(rng.choices(letters, k=2_400)) for n in range(count)]
    rng.shuffle(found)
    return found


def ordered(prompts):
    return [prompts[n] for n in prefix_order([prefix_key([prompt]) for prompt in prompts])]


def test_the_cached_share_is_three_quarters_of_what_is_possible():
    prompts = seed_shape(groups=60, count=1_800, rng=random.Random(7))
    # A KV cache of 60,000 tokens; a step takes 8,192 tokens of prompts, so that two or three are computed at once.
    size = {"capacity": 60_000 * 4 // BLOCK, "at_once": 3}
    as_given, as_ordered, possible = (
        cached_share(prompts, **size),
        cached_share(ordered(prompts), **size),
        possible_share(prompts),
    )
    print(f"cached share: as given {as_given:.1%}, ordered {as_ordered:.1%}, possible {possible:.1%}")
    assert as_ordered >= 0.75 * possible
    assert as_given < 0.75 * possible, "the shape needs no order"


prompts = st.lists(st.text("ab", max_size=6).map(lambda text: "".join(letter * 200 for letter in text)), max_size=40)


@given(prompts)
def test_every_prompt_is_there_once_and_equal_ones_keep_their_order(prompts):
    order = prefix_order([prefix_key([prompt]) for prompt in prompts])
    assert sorted(order) == list(range(len(prompts)))
    for prompt in set(prompts):
        places = [n for n in order if prompts[n] == prompt]
        assert places == sorted(places)
        assert order.index(places[-1]) - order.index(places[0]) == len(places) - 1, "equal prompts are neighbours"


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_groups_are_whole_and_in_the_order_of_their_first_members(groups):
    prompts = [str(group) * 3_000 + f"own {n} " * 200 for n, group in enumerate(groups)]
    order = prefix_order([prefix_key([prompt]) for prompt in prompts])
    assert [groups[n] for n in order] == sorted(groups, key=groups.index)
    assert order == sorted(order, key=lambda n: (groups.index(groups[n]), n))


def test_a_prompt_that_ends_at_a_level_does_not_part_longer_ones():
    short, groups = "x" * LEVELS[0], ["a" * 300, "b" * 300]
    prompts = [short, *(short + group + str(n) for n in range(3) for group in groups)]
    order = prefix_order([prefix_key([prompt]) for prompt in prompts])
    assert order == [0, 1, 3, 5, 2, 4, 6]


def test_a_short_prompt_has_a_short_key():
    assert len(prefix_key(["Why?"])) == WIDTH
    assert len(prefix_key(["x" * 100_000])) == WIDTH * len(LEVELS)


@given(st.integers(0, 300))
def test_prompts_that_share_nothing_stay_as_they_are(count):
    rng = random.Random(count)
    keys = [prefix_key([f"{rng.random()} and so on" * 30]) for _ in range(count)]
    assert prefix_order(keys) == list(range(count))
