from services.runtime.addresses import is_loopback


def test_loopback():
    assert all(map(is_loopback, ("localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "[::1]")))
    assert not any(map(is_loopback, ("0.0.0.0", "example.org", "10.0.0.1", "", "localhost.evil.example", "::")))
