"""Test a rolling restart under load: two processes of each service run, and each process is restarted once."""

import pytest

from tests.chaos.cluster.campaign import play, report


@pytest.mark.slow
async def test_a_rolling_restart_fails_no_answer_and_runs_no_request_twice(tmp_path):
    found, rows, figures = await play(
        tmp_path, minutes=0, streams=4, seed=11, every_s=0, tokens=200, scale=0.5, with_cloud=False, rolling=1, nodes=0
    )
    print(report(found, rows, figures))
    assert found.violations[:8] == []
    assert found.double_takes == []
    assert set(found.outcomes) <= {"completed", "recalled"}, found.reasons
    assert figures["faults"] == 10
    assert found.outcomes["completed"] > 10
