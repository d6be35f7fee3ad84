import pytest

from services.bus import BusSettings
from services.runtime import UserError
from services.tracer.service import TracerService
from services.tracer.settings import Settings


@pytest.mark.parametrize("url", ["localhost:4318", "http://:4318", "http://collector:port", "http://a..b"])
def test_an_address_of_a_collector_that_is_none_is_a_mistake(url):
    with pytest.raises(UserError, match=f"^OTEL_EXPORTER_OTLP_ENDPOINT='{url}': must be an address such as http://"):
        TracerService(Settings(endpoint=url), BusSettings(), lambda: None)
