"""How a rails process ends."""

from tests.integration.rails.harness import asked, unhurried
from tests.integration.rails.tls import NeverSaysGoodbye


async def test_a_redis_that_closes_slowly_does_not_spoil_the_end(lab, redis_server, tmp_path):
    peer = NeverSaysGoodbye(tmp_path, redis_server.port)
    log = tmp_path / "stderr.txt"
    try:
        with log.open("w") as stderr:
            service = lab.spawn(
                stderr=stderr,
                RAILBUS_POLICY=str(unhurried(tmp_path)),
                RAILBUS_REDIS_URL=f"rediss://127.0.0.1:{peer.port}/0?ssl_cert_reqs=none&ssl_check_hostname=false",
            )
            await service.ready()
            for number in range(200):
                verdict = await lab.verdict(asked(number, "What is a log?"))
                if "remembered" in str(verdict.rails):
                    break
            assert "remembered" in str(verdict.rails)  # so it is connected
            assert service.stop() == 0
    finally:
        peer.close()
    assert "Traceback" not in log.read_text()
