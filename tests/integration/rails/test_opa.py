"""Test that a real OPA server decides as the built-in Rego does, and that the OPA rail fails if the server is dead."""

import pytest

from services.policy import AdmissionRequest, load
from services.rails import opa
from services.rails.rail import RailFailed
from tests.support.opa_server import OpaServer
from tests.support.policies import ROOT

ASKED = AdmissionRequest(
    tenant="clinic", model="m", lane="batch", attempt=1, prompt_chars=3, max_tokens=9_999, mode="gated",
    egress="allowed",
)  # fmt: skip


async def test_real_opa_admits_as_the_policy_does_and_its_death_breaks_the_rail(tmp_path):
    folder = ROOT / "policies/default"
    server = OpaServer(folder, tmp_path / "opa.log")
    rail = opa.OpaClient(server.url)
    try:
        server.wait()
        assert await rail.admit(ASKED) == load(folder).admit(ASKED)
        server.kill()
        with pytest.raises(RailFailed, match="OPA is unreachable"):
            await rail.admit(ASKED)
    finally:
        await rail.close()
        server.kill()
