import pytest

from services.runtime.errors import UserError
from services.runtime.task_groups import first_error, leaf_errors

MISTAKE, CRASH, OTHER = UserError("set it"), ValueError("broken"), OSError("gone")


@pytest.mark.parametrize(
    ("error", "inside", "first"),
    [
        (CRASH, [CRASH], CRASH),
        (ExceptionGroup("", [CRASH]), [CRASH], CRASH),
        (ExceptionGroup("", [CRASH, ExceptionGroup("", [OTHER])]), [CRASH, OTHER], CRASH),
        (ExceptionGroup("", [CRASH, ExceptionGroup("", [OTHER, MISTAKE])]), [CRASH, OTHER, MISTAKE], MISTAKE),
        (BaseExceptionGroup("", [KeyboardInterrupt(), MISTAKE]), None, MISTAKE),
    ],
)
def test_a_user_error_is_reported_before_any_other(error, inside, first):
    assert first_error(error) is first
    assert inside is None or leaf_errors(error) == inside
