"""Compare three draft lengths: no tokens, 6 tokens, and an adaptive length.

The adaptive length is at most 6 tokens. It is chosen for each step from the load and the measured acceptance.

``python -m tests.bench.adaptive_speculation`` takes 15 seconds. The figures are simulated times, so they do not depend
on the speed of the machine.
"""

from tests.unit.generator.test_adaptive_simulation import seconds

BATCHES, ALPHAS = (1, 8, 32, 64, 160), (0.1, 0.3, 0.5, 0.7, 0.85)


def main():
    """Print one row for each batch size and acceptance rate: the seconds until all answers of 300 tokens are done."""
    print(
        f"{'batch':>5} {'alpha':>5} {'off':>7} {'always 6':>9} {'adaptive':>9} {'over off':>9} {'over the better':>16}"
    )
    worst = 0.0
    for batch in BATCHES:
        for alpha in ALPHAS:
            off, on = seconds(batch, alpha, gamma=0), seconds(batch, alpha, gamma=6)
            chosen = seconds(batch, alpha, gamma=6, adaptive=True)
            worst = max(worst, chosen / off)
            print(
                f"{batch:>5} {alpha:>5} {off:>7.2f} {on:>9.2f} {chosen:>9.2f} {chosen / off:>9.2f} "
                f"{chosen / min(off, on):>16.2f}"
            )
    print(f"adaptive over off, at worst: {worst:.3f}")


if __name__ == "__main__":
    main()
