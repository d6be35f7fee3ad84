"""Wrong options of ``railbus tune``, named before anything is started."""

import pytest

from services.cli.__main__ import main


@pytest.mark.parametrize(("flag", "value"), [("--margin", "nan"), ("--budget", "inf"), ("--slo-ttft-ms", "-inf")])
def test_a_number_that_is_not_finite_is_named(capsys, flag, value):
    assert main(["tune", "--engine", "simulated", f"{flag}={value}"]) == 2
    assert capsys.readouterr().err == f"railbus tune: {flag}: give a finite number\n"
