"""A reference for speculative sampling in NumPy: the lossless rule, and rules that are mistaken for it.

A draft proposes tokens sampled from q; the target, which computes p for each position, accepts some of them and adds
one of its own. The rule is lossless if the result is distributed as if the target alone had sampled it. Theorem 3.5 and
Appendix A.1 of Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding" (2023) prove it
for one rule: accept x with probability min(1, p(x)/q(x)), else sample from the normalised max(0, p - q); if all drafts
are accepted, sample one more token from p. Lossless is relative to the target as served: quantised weights are another
target.

Pure: uniform random numbers are arguments. Rows are probabilities over the vocabulary, the last axis.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Tokens: TypeAlias = NDArray[np.int64]

Rule = Literal["rejection", "match", "target_probability", "plain_resample", "threshold"]

NOTHING: Final = -1
"""Padding of :attr:`Verified.tokens` after the last token of a cycle."""

THRESHOLD: Final = 0.3
"""Share of the likeliest token's probability above which the rule ``threshold`` accepts a draft."""

TOLERANCE: Final = 1e-6
"""Largest difference of a row's sum from one."""


class _Parts(NamedTuple):
    """A rule at one position.

    Attributes:
        keep: Probability of accepting the token once drafted, for each token of the vocabulary.
        fresh: Distribution of the token sampled instead.
    """

    keep: Floats
    fresh: Floats


class Verified(NamedTuple):
    """The result of a cycle, for each sequence.

    Attributes:
        tokens: Shape (sequences, gamma + 1); the accepted drafts and the target's own token, then ``NOTHING``.
        accepted: Number of accepted drafts.
    """

    tokens: Tokens
    accepted: Tokens


def verify(
    target: Floats, draft: Floats, drafted: Tokens, *, chance: Floats, fresh: Floats, rule: Rule = "rejection"
) -> Verified:
    """Verify the drafts of one cycle, and add the target's token.

    Args:
        target: p at each drafted position and at the next one, shape (sequences, gamma + 1, vocabulary).
        draft: q at each drafted position, shape (sequences, gamma, vocabulary).
        drafted: The draft's tokens, shape (sequences, gamma).
        chance: Uniform in [0, 1), one per draft; independent of everything else.
        fresh: Uniform in [0, 1), one per sequence, for the token that the target adds.
        rule: How drafts are accepted or replaced; only ``rejection`` and ``match`` are lossless.

    Raises:
        ValueError: The shapes do not fit, or a row is not a distribution.
    """
    sequences, gamma = drafted.shape
    vocabulary = target.shape[-1]
    if target.shape != (sequences, gamma + 1, vocabulary) or draft.shape != (sequences, gamma, vocabulary):
        raise ValueError(f"p must be {(sequences, gamma + 1, vocabulary)} and q one place shorter, not {target.shape}")
    distributions("p", target)
    distributions("q", draft)
    parts = RULES[rule](target[:, :gamma], draft)
    keep = np.take_along_axis(parts.keep, drafted[..., None], axis=-1)[..., 0]
    kept = np.cumprod(chance < keep, axis=1, dtype=np.int64)  # drafts after a rejected one are not verified
    accepted = kept.sum(axis=1)
    last = np.concatenate([parts.fresh, target[:, gamma:]], axis=1)  # the bonus token comes from p itself
    added = draw(last[np.arange(sequences), accepted], fresh)
    tokens = np.concatenate([np.where(kept, drafted, NOTHING), np.full((sequences, 1), NOTHING)], axis=1)
    tokens[np.arange(sequences), accepted] = added
    return Verified(tokens, accepted)


def draw(probabilities: Floats, uniform: Floats) -> Tokens:
    """Sample a token from each row, by inversion of its cumulative sum."""
    steps = np.cumsum(probabilities, axis=-1)
    index = (steps <= uniform[..., None] * steps[..., -1:]).sum(axis=-1)
    return np.asarray(np.minimum(index, probabilities.shape[-1] - 1))


def emitted(target: Floats, draft: Floats, rule: Rule = "rejection") -> Floats:
    """Return the exact distribution of a drafted position's token: q keep + (1 - sum of q keep) fresh.

    For ``rejection`` and ``match`` it is p for every q; for the other rules it is between p and q.
    """
    parts = RULES[rule](distributions("p", target), distributions("q", draft))
    kept = draft * parts.keep
    return np.asarray(kept + (1 - kept.sum(axis=-1, keepdims=True)) * parts.fresh)


def acceptance(target: Floats, draft: Floats, rule: Rule = "rejection") -> Floats:
    """Return the probability that a draft is accepted; ``rejection`` has sum of min(p, q), the lossless maximum."""
    parts = RULES[rule](distributions("p", target), distributions("q", draft))
    return np.asarray((draft * parts.keep).sum(axis=-1))


def total_variation(one: Floats, other: Floats) -> Floats:
    """Return half the sum of absolute differences: the largest difference in the probability of any event."""
    return np.asarray(np.abs(one - other).sum(axis=-1) / 2)


def one_hot(tokens: Tokens, vocabulary: int) -> Floats:
    """Return the q of a draft that always proposes its likeliest token (greedy drafting, n-gram, suffix)."""
    return np.asarray(np.eye(vocabulary)[tokens])


def distributions(name: str, rows: Floats) -> Floats:
    """Return the rows.

    Raises:
        ValueError: A row is not a distribution.
    """
    if rows.size and (rows.min() < 0 or np.abs(rows.sum(axis=-1) - 1).max() > TOLERANCE):
        raise ValueError(f"{name} must hold probabilities that sum to one")
    return rows


def _rejection(p: Floats, q: Floats) -> _Parts:
    return _Parts(_ratio(p, q), _residual(p, q))


def _match(p: Floats, q: Floats) -> _Parts:
    """Sample t from p and accept x only if x = t: lossless too, but it accepts only sum p q, not sum min(p, q)."""
    # Given that x was drafted and t differs, t follows p without x, so the replacement depends on x. Summed over x:
    missed = p * (1 - q)
    total = missed.sum(axis=-1, keepdims=True)
    return _Parts(p, np.where(total > 0, missed / np.where(total > 0, total, 1), p))


def _target_probability(p: Floats, q: Floats) -> _Parts:
    """Accept if ``rand < p(x)``: it ignores that x is a sample of q, and is right only for a one-hot q."""
    return _Parts(p, _residual(p, q))


def _plain_resample(p: Floats, q: Floats) -> _Parts:
    """Accept by the right test but replace by a sample of p: tokens likely under q get too much probability."""
    return _Parts(_ratio(p, q), p)


def _threshold(p: Floats, q: Floats) -> _Parts:
    """Accept every token that is likely enough under p: fast, but not the target's distribution."""
    del q
    return _Parts((p >= THRESHOLD * p.max(axis=-1, keepdims=True)).astype(np.float64), p)


def _ratio(p: Floats, q: Floats) -> Floats:
    """Return min(1, p/q); where q is 0 the token is never drafted, so any value will do."""
    return np.asarray(np.minimum(1.0, p / np.where(q > 0, q, 1)))


def _residual(p: Floats, q: Floats) -> Floats:
    """Return max(0, p - q), normalised; p where the two are equal, as no draft is rejected there."""
    rest = np.maximum(p - q, 0)
    total = rest.sum(axis=-1, keepdims=True)
    return np.where(total > 0, rest / np.where(total > 0, total, 1), p)


RULES: Final[Mapping[Rule, Callable[[Floats, Floats], _Parts]]] = {
    "rejection": _rejection,
    "match": _match,
    "target_probability": _target_probability,
    "plain_resample": _plain_resample,
    "threshold": _threshold,
}
