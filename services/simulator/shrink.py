"""From a failing plan to the fewest faults that still break the same promise."""

from services.simulator.plan import Plan
from services.simulator.tree.units import Parts
from services.simulator.world import World


def shrink(plan: Plan, promise: str, parts: Parts | None = None) -> Plan:
    """Leave out one fault after the other, with everything else fixed, until none can be spared."""
    index = 0
    while index < len(plan.faults):
        smaller = plan.without(index)
        violation = World(smaller, parts).run().violation
        if violation is not None and violation.promise == promise:
            plan, index = smaller, 0
        else:
            index += 1
    return plan
