import pytest

from services.rails.cache import RailCache
from services.runtime import UserError


@pytest.mark.parametrize("url", ["localhost:6379", "redis://:hush#1@h:6379", "redis://h:99999", "redis://a..b"])
def test_an_address_that_is_none_is_a_mistake_and_not_repeated(url):
    with pytest.raises(UserError, match=r"^RAILBUS_REDIS_URL=\(hidden\): must be redis://HOST:PORT, or rediss://"):
        RailCache(url)
