"""One Chromium for all tests of a file."""
from collections.abc import Iterator

import pytest
from chromium import stop_browser


@pytest.fixture(scope="module", autouse=True)
def _one_browser_a_file() -> Iterator[None]:
    """It ends with the file: Playwright keeps an event loop running, and the next file's tests may want to run one."""
    yield
    stop_browser()
