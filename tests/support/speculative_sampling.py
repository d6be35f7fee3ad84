"""A reference for speculative sampling in NumPy: two lossless rules, and three rules that are not lossless.

A draft model proposes tokens that it samples from a distribution q. The target model computes its own distribution p
for each position. It accepts some of the proposed tokens, and adds one token of its own. A rule is lossless if the
result is distributed as if the target alone had sampled it.

The rule ``rejection`` accepts a token x with probability min(1, p(x)/q(x)). A rejected token is replaced by a sample
from the normalised max(0, p - q). If all drafts are accepted, one more token is sampled from p. Theorem 3.5 and
Appendix A.1 of Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding" (2023) prove that
this rule is lossless.

The functions draw no random numbers: uniform random numbers are arguments. The last axis of ``p`` and ``q`` is the
vocabulary, so each row is a distribution over tokens.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Tokens: TypeAlias = NDArray[np.int64]

Rule = Literal["rejection", "match", "target_probability", "plain_resample", "threshold"]

NOTHING: Final = -1
"""Fills ``Verified.tokens`` after the last token of a cycle."""

THRESHOLD: Final = 0.3
"""The rule ``threshold`` accepts a token if p of the token is at least this share of the largest p."""

TOLERANCE: Final = 1e-6
"""Largest allowed difference between the sum of a row and one."""


class _Parts(NamedTuple):
    """The probabilities with which a rule accepts and replaces drafted tokens, at each position.

    Attributes:
        keep: For each token of the vocabulary, the probability that it is accepted if it was drafted.
        fresh: Distribution from which a rejected token's replacement is sampled.
    """

    keep: Floats
    fresh: Floats


class Verified(NamedTuple):
    """The result of ``verify``, for each sequence.

    Attributes:
        tokens: The accepted tokens of the draft, then the token that the target adds. The rest of the row is filled
            with ``NOTHING``. Shape (sequences, gamma + 1).
        accepted: Number of accepted tokens of the draft. Shape (sequences,).
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
        chance: Uniform random numbers in [0, 1), one for each drafted token. They decide which tokens are accepted.
        fresh: Uniform random numbers in [0, 1), one for each sequence. They select the token that the target adds.
        rule: How drafts are accepted or replaced. Only ``rejection`` and ``match`` are lossless.

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
    """Sample one token from each row by inverse transform sampling. ``uniform`` has a random number for each row."""
    steps = np.cumsum(probabilities, axis=-1)
    index = (steps <= uniform[..., None] * steps[..., -1:]).sum(axis=-1)
    return np.asarray(np.minimum(index, probabilities.shape[-1] - 1))


def emitted(target: Floats, draft: Floats, rule: Rule = "rejection") -> Floats:
    """Return the exact distribution of the final token at a drafted position: the accepted draft or its replacement.

    For the rules ``rejection`` and ``match``, this distribution equals ``target``. For other rules, it may differ.
    """
    parts = RULES[rule](distributions("p", target), distributions("q", draft))
    kept = draft * parts.keep
    return np.asarray(kept + (1 - kept.sum(axis=-1, keepdims=True)) * parts.fresh)


def acceptance(target: Floats, draft: Floats, rule: Rule = "rejection") -> Floats:
    """Return the probability that a drafted token is accepted.

    For ``rejection``, it is the sum of min(p, q) over the vocabulary. No lossless rule has a higher probability.
    """
    parts = RULES[rule](distributions("p", target), distributions("q", draft))
    return np.asarray((draft * parts.keep).sum(axis=-1))


def total_variation(one: Floats, other: Floats) -> Floats:
    """Return the total variation distance of two distributions: half the sum of the absolute differences."""
    return np.asarray(np.abs(one - other).sum(axis=-1) / 2)


def one_hot(tokens: Tokens, vocabulary: int) -> Floats:
    """Return the distribution q of a draft that proposes ``tokens`` with certainty, such as a greedy draft."""
    return np.asarray(np.eye(vocabulary)[tokens])


def distributions(name: str, rows: Floats) -> Floats:
    """Check that the rows are distributions, and return them. ``name`` is for the error message.

    Raises:
        ValueError: A row is not a distribution.
    """
    if rows.size and (rows.min() < 0 or np.abs(rows.sum(axis=-1) - 1).max() > TOLERANCE):
        raise ValueError(f"{name} must hold probabilities that sum to one")
    return rows


def _rejection(p: Floats, q: Floats) -> _Parts:
    return _Parts(_ratio(p, q), _residual(p, q))


def _match(p: Floats, q: Floats) -> _Parts:
    """Sample a token from p, and accept the drafted token only if it equals the sampled one.

    This rule is lossless. It accepts a drafted token with probability sum(p * q). The rule ``rejection`` accepts a
    drafted token with probability sum(min(p, q)), which is never lower.
    """
    # Given that x was drafted and t differs, t follows p without x, so the replacement depends on x. Summed over x:
    missed = p * (1 - q)
    total = missed.sum(axis=-1, keepdims=True)
    return _Parts(p, np.where(total > 0, missed / np.where(total > 0, total, 1), p))


def _target_probability(p: Floats, q: Floats) -> _Parts:
    """Accept x with probability p(x).

    This rule ignores that x was sampled from q. It is lossless only if q is one-hot.
    """
    return _Parts(p, _residual(p, q))


def _plain_resample(p: Floats, q: Floats) -> _Parts:
    """Accept a token with probability min(1, p/q), but replace a rejected token by a sample from p.

    This rule is not lossless: tokens with q > p > 0 get too much probability.
    """
    return _Parts(_ratio(p, q), p)


def _threshold(p: Floats, q: Floats) -> _Parts:
    """Accept every token that is likely enough under p. This rule is fast, but not lossless."""
    del q
    return _Parts((p >= THRESHOLD * p.max(axis=-1, keepdims=True)).astype(np.float64), p)


def _ratio(p: Floats, q: Floats) -> Floats:
    """Return min(1, p/q). Where q is 0, the value does not matter, because the token is never drafted."""
    return np.asarray(np.minimum(1.0, p / np.where(q > 0, q, 1)))


def _residual(p: Floats, q: Floats) -> Floats:
    """Return max(0, p - q), normalised. If p equals q, return p."""
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
