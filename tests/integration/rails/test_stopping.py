"""Test that a rails process stops cleanly even if Redis closes its connection slowly or never answers."""

import socket

from redis.asyncio import Redis

from tests.integration.rails.lab import copy_patient_policy, make_request
from tests.integration.rails.tls import SilentTlsProxy


async def test_a_redis_that_closes_slowly_does_not_spoil_the_end(lab, redis_server, tmp_path):
    peer = SilentTlsProxy(tmp_path, redis_server.port)
    try:
        service = await lab.run(
            RAILBUS_POLICY=str(copy_patient_policy(tmp_path)),
            RAILBUS_REDIS_URL=f"rediss://127.0.0.1:{peer.port}/0?ssl_cert_reqs=none&ssl_check_hostname=false",
        )
        async with Redis(port=redis_server.port) as redis:
            for number in range(200):
                await lab.verdict(make_request(number, f"What is a log, said {number} times?"))
                if kept := await redis.dbsize():
                    break
        assert kept, "so it is connected"
        assert await service.stop() == 0
    finally:
        peer.close()
    assert "Traceback" not in service.stderr


async def test_it_may_be_stopped_while_it_reaches_for_a_redis_that_says_nothing(lab, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        service = await lab.run(
            RAILBUS_POLICY=str(copy_patient_policy(tmp_path)),
            RAILBUS_REDIS_URL=f"rediss://127.0.0.1:{silent.getsockname()[1]}/0?ssl_cert_reqs=none",
        )
        assert await service.stop() == 0
    assert "Traceback" not in service.stderr
