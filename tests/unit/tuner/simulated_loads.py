"""Simulate measurements of a change whose effect is known. Machine, processes and requests add noise."""

import math

from services.tuner.decide import Trial
from services.tuner.experiment import SettingsChange, Size
from services.tuner.measurements import Load, RequestRow, Round

CHANGE = SettingsChange(name="planted", settings={"RAILBUS_X": "1"}, item="batching")


def load(rng, *, factor, requests=16, noise=0.08, stall=0.0):
    """Return the simulated measurements of some requests.

    Args:
        factor: Factor by which all times are multiplied.
        requests: Number of requests.
        noise: Relative standard deviation of the requests' times.
        stall: Probability that a request takes three times as long.
    """
    rows, wall = [], 0.0
    for _ in range(requests):
        pace = factor * math.exp(rng.gauss(0, noise)) * (3.0 if rng.random() < stall else 1.0)
        steps = tuple((pace * (20.0 + 8.0 * step), 1) for step in range(6))
        rows.append(RequestRow(steps=steps, total_ms=steps[-1][0]))
        wall += steps[-1][0] / 1e3
    return Load(requests=tuple(rows), wall_s=wall, memory_mib=300.0)


def rounds(rng, count, *, effect=1.0, process=0.02, drift=0.05, stall=0.0):
    """Return simulated rounds.

    A round has four loads. A load is a group of requests whose times are measured together. The first and the last load
    run in a process with the old settings. The second and the third load run in a process with the changed settings.

    Args:
        count: Number of rounds.
        effect: Factor by which the change multiplies all times.
        process: Relative standard deviation of the speed of processes that have the same settings.
        drift: Relative standard deviation of the machine's speed from load to load.
        stall: Probability that a request takes three times as long.
    """
    found = []
    for _ in range(count):
        machine = [math.exp(rng.gauss(0, drift)) for _ in range(4)]
        a, b = math.exp(rng.gauss(0, process)), effect * math.exp(rng.gauss(0, process))
        a1, b1, b2, a2 = (
            load(rng, factor=pace * arm, stall=stall) for pace, arm in zip(machine, (a, b, b, a), strict=True)
        )
        found.append(Round(before=(a1, a2), after=(b1, b2)))
    return tuple(found)


def trial(rng, *, count=8, change=CHANGE, quality=None, **about):
    return Trial(
        change=change,
        base={},
        size=Size(rounds=count, load=16),
        rounds=rounds(rng, count, **about),
        quality=quality,
    )
