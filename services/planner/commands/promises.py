"""The options ``--class`` and ``--policy``, which select the latency limits of a class of requests."""

import argparse
from pathlib import Path

from services.planner.serve.plan import Limits
from services.runtime.classes.policy_deadlines import DEFAULT_POLICY
from services.runtime.classes.service_classes import Slo, find_class
from services.runtime.errors import UserError


def add_class_options(parser: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--class", dest="service_class", metavar="NAME", help="take limits from this class of the policy, such as chat"
    )
    parser.add_argument(
        "--policy",
        type=Path,
        default=DEFAULT_POLICY,
        metavar="DIR",
        help="folder of the policy (default: the built-in policy)",
    )


def limits_of_class(args: argparse.Namespace) -> Limits | None:
    """Return the limits of the class that the user chose; None if no class was chosen.

    Raises:
        UserError: The policy has no such class, or the class has no limits.
    """
    if args.service_class is None:
        return None
    limits = limits_of(find_class(args.policy, args.service_class).slo)
    if limits == Limits():
        raise UserError(f"--class {args.service_class} has no objectives: add [classes.{args.service_class}.slo]")
    return limits


def limits_of(slo: Slo) -> Limits:
    first, token, total = (None if one is None else one.ms for one in (slo.first_token, slo.inter_token, slo.total))
    return Limits(ttft_ms=first, token_ms=token, total_ms=total)
