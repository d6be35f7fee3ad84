"""The fold: it computes what a reader may see from the stream log of one request. It has no I/O and no clock.

All programs that read the stream log use this code.
"""

from services.stream.catchup import catch_up
from services.stream.ops import Begin, Close, Finish, Op, Refuse, Replace, Restart, Show, Withdraw, apply
from services.stream.screen import AS_STARTED, Governance, Screen

__all__ = [
    "AS_STARTED",
    "Begin",
    "Close",
    "Finish",
    "Governance",
    "Op",
    "Refuse",
    "Replace",
    "Restart",
    "Screen",
    "Show",
    "Withdraw",
    "apply",
    "catch_up",
]
