import pytest

from services.runtime.errors import UserError, first_of, leaves

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
def test_of_several_errors_the_one_that_a_person_can_put_right_is_told(error, inside, first):
    assert first_of(error) is first
    assert inside is None or leaves(error) == inside
