from tests.integration.bus.conftest import new_topic, producer, pytest_asyncio_loop_factories, settings, topic

__all__ = ["new_topic", "producer", "pytest_asyncio_loop_factories", "settings", "topic"]
