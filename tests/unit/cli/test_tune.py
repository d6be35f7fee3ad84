"""Test that ``railbus tune`` refuses an option whose number is not finite, and names the option."""

import pytest

from services.cli.__main__ import main


@pytest.mark.parametrize(("flag", "value"), [("--margin", "nan"), ("--budget", "inf"), ("--slo-ttft-ms", "-inf")])
def test_a_number_that_is_not_finite_is_named(capsys, flag, value):
    with pytest.raises(SystemExit) as ended:
        main(["tune", "--engine", "simulated", f"{flag}={value}"])
    assert ended.value.code == 2
    assert f"argument {flag}: '{value}': must be a number" in capsys.readouterr().err
