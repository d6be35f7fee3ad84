"""Entry point of the installed program ``railbus``.

Until a subcommand runs, Ctrl-C ends the process at once, because Python's own handler would raise ``KeyboardInterrupt``
in the middle of an import, which prints a traceback. To replace that handler early, this module imports nothing that
takes time. It uses ``_signal``, which is compiled into the interpreter, because ``signal`` imports ``enum``. Ctrl-C
during the interpreter's own start can still print a traceback.
"""

import _signal  # type: ignore[import-not-found]  # typeshed has only signal


def main() -> int:
    """Run one subcommand and return its exit code."""
    handler = _signal.getsignal(_signal.SIGINT)
    if handler is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from services.cli.__main__ import main as run_command

    return run_command(interrupt_handler=handler)
