"""Speculative sampling as a reference in NumPy: the lossless rule beside the rules that are mistaken for it.

A draft proposes tokens drawn from q; the target, which gives p for each place, keeps some of them and adds one of its
own. "Lossless" says that what comes out is distributed as if the target alone had drawn it. Theorem 3.5 and Appendix
A.1 of Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding" (2023) prove it for one
rule: keep x with probability min(1, p(x)/q(x)), else draw from the normalised max(0, p - q), and where all drafts were
kept draw one more from p. "Lossless" is relative to the target as it is served: quantised weights are another target.

Pure: randomness comes in as uniform numbers. Rows are probabilities over the vocabulary, the last axis.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Tokens: TypeAlias = NDArray[np.int64]

Rule = Literal["rejection", "match", "target_probability", "plain_resample", "threshold"]

NOTHING: Final = -1
"""Stands in :attr:`Verified.tokens` behind the last token of a cycle."""

THRESHOLD: Final = 0.3
"""The share of the target's likeliest token above which the rule ``threshold`` keeps a draft."""

TOLERANCE: Final = 1e-6
"""A row may miss a sum of one by so much."""


class _Parts(NamedTuple):
    """A rule at one place: the chance that each token is kept once drafted, and what is drawn when it is not.

    Attributes:
        keep: Probability of keeping the token, for each token of the vocabulary.
        fresh: Distribution of the token drawn instead.
    """

    keep: Floats
    fresh: Floats


class Verified(NamedTuple):
    """What a cycle gave, for each sequence.

    Attributes:
        tokens: Shape (sequences, gamma + 1); the drafts kept and the target's own token, then ``NOTHING``.
        accepted: Drafts kept.
    """

    tokens: Tokens
    accepted: Tokens


def verify(
    target: Floats, draft: Floats, drafted: Tokens, *, chance: Floats, fresh: Floats, rule: Rule = "rejection"
) -> Verified:
    """One cycle: which drafts are kept, and the token that follows them.

    Args:
        target: p at each drafted place and at the one after, shape (sequences, gamma + 1, vocabulary).
        draft: q at each drafted place, shape (sequences, gamma, vocabulary).
        drafted: The draft's tokens, shape (sequences, gamma).
        chance: Uniform in [0, 1), one per draft; independent of everything else.
        fresh: Uniform in [0, 1), one per sequence, for the token the target adds.
        rule: How drafts are kept or replaced; only ``rejection`` and ``match`` are lossless.

    Raises:
        ValueError: The shapes do not fit, or a row is no distribution.
    """
    sequences, gamma = drafted.shape
    vocabulary = target.shape[-1]
    if target.shape != (sequences, gamma + 1, vocabulary) or draft.shape != (sequences, gamma, vocabulary):
        raise ValueError(f"p must be {(sequences, gamma + 1, vocabulary)} and q one place shorter, not {target.shape}")
    distributions("p", target)
    distributions("q", draft)
    parts = RULES[rule](target[:, :gamma], draft)
    keep = np.take_along_axis(parts.keep, drafted[..., None], axis=-1)[..., 0]
    kept = np.cumprod(chance < keep, axis=1, dtype=np.int64)  # what follows a rejected draft is not looked at
    accepted = kept.sum(axis=1)
    last = np.concatenate([parts.fresh, target[:, gamma:]], axis=1)  # the bonus token comes from p itself
    added = draw(last[np.arange(sequences), accepted], fresh)
    tokens = np.concatenate([np.where(kept, drafted, NOTHING), np.full((sequences, 1), NOTHING)], axis=1)
    tokens[np.arange(sequences), accepted] = added
    return Verified(tokens, accepted)


def draw(probabilities: Floats, uniform: Floats) -> Tokens:
    """A token from each row, by inversion of its cumulative sum."""
    steps = np.cumsum(probabilities, axis=-1)
    index = (steps <= uniform[..., None] * steps[..., -1:]).sum(axis=-1)
    return np.asarray(np.minimum(index, probabilities.shape[-1] - 1))


def emitted(target: Floats, draft: Floats, rule: Rule = "rejection") -> Floats:
    """The distribution of a drafted place's token, exactly: q keep + (1 - sum of q keep) fresh.

    For ``rejection`` and ``match`` this is p, whatever q is; for the others it is something between p and q.
    """
    parts = RULES[rule](distributions("p", target), distributions("q", draft))
    kept = draft * parts.keep
    return np.asarray(kept + (1 - kept.sum(axis=-1, keepdims=True)) * parts.fresh)


def acceptance(target: Floats, draft: Floats, rule: Rule = "rejection") -> Floats:
    """The chance that a draft is kept; for ``rejection`` sum of min(p, q), the most that a lossless rule can keep."""
    parts = RULES[rule](distributions("p", target), distributions("q", draft))
    return np.asarray((draft * parts.keep).sum(axis=-1))


def total_variation(one: Floats, other: Floats) -> Floats:
    """Half the sum of absolute differences: the most by which the chance of any event differs."""
    return np.asarray(np.abs(one - other).sum(axis=-1) / 2)


def one_hot(tokens: Tokens, vocabulary: int) -> Floats:
    """The q of a draft that always proposes its likeliest token (greedy drafting, n-gram, suffix)."""
    return np.asarray(np.eye(vocabulary)[tokens])


def distributions(name: str, rows: Floats) -> Floats:
    """The rows, if each is a distribution.

    Raises:
        ValueError: One is not.
    """
    if rows.size and (rows.min() < 0 or np.abs(rows.sum(axis=-1) - 1).max() > TOLERANCE):
        raise ValueError(f"{name} must hold probabilities that sum to one")
    return rows


def _rejection(p: Floats, q: Floats) -> _Parts:
    return _Parts(_ratio(p, q), _residual(p, q))


def _match(p: Floats, q: Floats) -> _Parts:
    """Draws t from p and keeps x only if x = t: lossless too, but it keeps less, sum p q instead of sum min(p, q)."""
    # Given x was drafted and t differs, t is spread as p without x, so the replacement depends on x. Summed over x:
    missed = p * (1 - q)
    total = missed.sum(axis=-1, keepdims=True)
    return _Parts(p, np.where(total > 0, missed / np.where(total > 0, total, 1), p))


def _target_probability(p: Floats, q: Floats) -> _Parts:
    """``rand < p(x)``: it forgets that x was drawn from q, and is right only if q is one-hot, where q(x) is 1."""
    return _Parts(p, _residual(p, q))


def _plain_resample(p: Floats, q: Floats) -> _Parts:
    """The right test, but the replacement is drawn from p: what q likes is counted twice."""
    return _Parts(_ratio(p, q), p)


def _threshold(p: Floats, q: Floats) -> _Parts:
    """Keeps whatever the target finds likely enough: fast, and not what the target would have said."""
    del q
    return _Parts((p >= THRESHOLD * p.max(axis=-1, keepdims=True)).astype(np.float64), p)


def _ratio(p: Floats, q: Floats) -> Floats:
    """min(1, p/q); where q is 0 nothing is ever drafted, so it does not matter."""
    return np.asarray(np.minimum(1.0, p / np.where(q > 0, q, 1)))


def _residual(p: Floats, q: Floats) -> Floats:
    """max(0, p - q), normalised; p where the two are equal, for then nothing is ever rejected."""
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
