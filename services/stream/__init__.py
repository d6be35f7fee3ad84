"""The fold: from the events of one request on the stream log, compute the text that a reader may see.

All programs that read the stream log use this code. It does no I/O and reads no clock.
"""

from services.stream.catchup import catch_up
from services.stream.ops import Begin, Close, Finish, Op, Refuse, Replace, Restart, Show, Withdraw, apply, encode_op
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
    "encode_op",
]
