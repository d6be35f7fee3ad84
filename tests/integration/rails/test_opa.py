"""The rail that asks an OPA server, with the real one."""

import pytest

from services.policy import Admittance, load
from services.rails import opa
from services.rails.rail import RailBroke
from tests.integration.policy.opa_server import OpaServer
from tests.unit.policy.folders import ROOT

ASKED = Admittance(
    tenant="clinic", model="m", lane="batch", attempt=1, prompt_chars=3, max_tokens=9_999, mode="gated",
    egress="allowed",
)  # fmt: skip


async def test_the_real_server_admits_as_the_policy_does_and_killed_it_breaks_the_rail(tmp_path):
    folder = ROOT / "policies/default"
    server = OpaServer(folder, tmp_path / "opa.log")
    rail = opa.OpaServer(server.url)
    try:
        server.wait()
        assert await rail.admit(ASKED) == load(folder).admit(ASKED)
        server.kill()
        with pytest.raises(RailBroke, match="OPA cannot be asked"):
            await rail.admit(ASKED)
    finally:
        await rail.close()
        server.kill()
