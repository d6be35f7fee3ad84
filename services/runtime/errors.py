"""Errors of the processes themselves, and what a task group wraps them in."""


class UserError(Exception):
    """Something the person who starts a service can put right; the message names the thing and the remedy.

    A process that ends with it prints one line without a traceback and exits with code 2.
    """


def leaves(error: BaseException) -> list[BaseException]:
    """Returns the errors inside nested exception groups, in order; an error that is no group by itself."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


def first_of(error: BaseException) -> BaseException:
    """Returns the one error to tell of several: the first that a person can put right, else the first.

    A task group wraps even a single error; raise this one ``from None`` in its place.
    """
    errors = leaves(error)
    return next((each for each in errors if isinstance(each, UserError)), errors[0])
