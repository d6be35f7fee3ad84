import pytest

from services.bus import BusSettings
from services.runtime import UserError
from services.tracer.service import TracerService
from services.tracer.settings import Settings


@pytest.mark.parametrize("url", ["localhost:4318", "http://:4318", "http://collector:port", "http://a..b"])
def test_an_address_of_a_collector_that_is_none_is_a_mistake(url):
    with pytest.raises(UserError, match=f"^OTEL_EXPORTER_OTLP_ENDPOINT='{url}': must be an address such as http://"):
        TracerService(Settings(endpoint=url), BusSettings(), lambda: None)


@pytest.mark.parametrize("url", ["user:hush@collector:4318", "http://user:hush@collector:port"])
def test_a_password_in_the_address_of_a_collector_is_not_repeated(url):
    with pytest.raises(UserError, match=r"^OTEL_EXPORTER_OTLP_ENDPOINT=\(hidden\): must be an address") as refused:
        TracerService(Settings(endpoint=url), BusSettings(), lambda: None)
    assert "hush" not in str(refused.value)
