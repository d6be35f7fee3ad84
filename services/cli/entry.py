import _signal  # type: ignore[import-not-found]  # typeshed has only signal


def main() -> int:
    # Until a subcommand runs, Ctrl-C ends the process at once. With Python's own handler, it would raise
    # KeyboardInterrupt in the middle of an import and print a traceback. So this module imports nothing slow before:
    # ``_signal`` is built into the interpreter, whereas ``signal`` imports ``enum``.
    handler = _signal.getsignal(_signal.SIGINT)
    if handler is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from services.cli.__main__ import main as run_command

    return run_command(interrupt_handler=handler)
