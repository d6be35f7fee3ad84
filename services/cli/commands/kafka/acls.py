"""``railbus acls``: print the Kafka commands that grant each service its access rights."""

import argparse

from schemas.acls import commands
from schemas.registry import ROLES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--principal-prefix", default="User:railbus-", metavar="PREFIX",
        help="prefix of the principals; the name of the role follows it (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--kafka",
        default="127.0.0.1:9092",
        metavar="HOST:PORT,...",
        help="brokers that the printed commands name (default: %(default)s)",
    )
    parser.add_argument(
        "--command-config", default="admin.properties", metavar="FILE",
        help="client settings of a user who may change ACLs, for the printed commands (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--role",
        action="append",
        choices=ROLES,
        help="print only the commands for this role; repeatable (default: all roles)",
    )


def run(args: argparse.Namespace) -> int:
    """Print a shell script that grants the access rights. Nothing is changed on the broker."""
    print("set -e")
    for command in commands(args.principal_prefix, args.kafka, args.command_config, args.role or ROLES):
        print(command)
    return 0
