"""Pearson's chi-square test of counts against expected probabilities."""

import math

import numpy as np

LEAST_EXPECTED = 5.0
"""Cells with a smaller expected count are merged, because the statistic would not be chi-square distributed."""


def chi_square(counts, probabilities):
    """Return the chi-square statistic, its degrees of freedom and the p-value."""
    counts, probabilities = np.ravel(counts).astype(float), np.ravel(probabilities).astype(float)
    if counts[probabilities <= 0].any():
        return math.inf, 1, 0.0  # what cannot happen has happened
    expected = counts.sum() * probabilities / probabilities.sum()
    small = expected < LEAST_EXPECTED
    if small.any():
        counts = np.append(counts[~small], counts[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
        if expected[-1] < LEAST_EXPECTED:  # the rest is too small as well: to the smallest of the others
            least = int(np.argmin(expected[:-1]))
            counts[least] += counts[-1]
            expected[least] += expected[-1]
            counts, expected = counts[:-1], expected[:-1]
    statistic = float((((counts - expected) ** 2) / expected).sum())
    freedom = len(expected) - 1
    return statistic, freedom, upper_gamma(freedom / 2, statistic / 2)


def upper_gamma(a, x):
    """Return Q(a, x), the regularised upper incomplete gamma function (Numerical Recipes, section 6.2)."""
    if x <= 0:
        return 1.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        n = a
        while abs(term) > abs(total) * 1e-15:
            n += 1
            term *= x / n
            total += term
        return max(0.0, 1.0 - total * front)
    b, c = x + 1 - a, 1e300
    d = h = 1 / b
    for i in range(1, 10_000):
        an = -i * (i - a)
        b += 2
        d = 1 / (an * d + b)
        c = b + an / c
        h *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return h * front
