import socket

import pytest

from services.devtools.vertex.script import EmulatorScript
from services.devtools.vertex.server import VertexEmulator, serving
from services.runtime import UserError


async def start(port):
    async with serving(VertexEmulator(EmulatorScript()), "127.0.0.1", port):
        pass


async def test_a_port_that_cannot_be_used_is_a_mistake():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"^--port {port}: cannot be used"):
            await start(port)
    with pytest.raises(UserError, match=r"^--port 99999: must be between 0 and 65535"):
        await start(99_999)
