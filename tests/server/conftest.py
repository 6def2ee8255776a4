"""What several files of server tests begin with."""
import pytest
from async_driving import Held, fake
from test_engine import make


@pytest.fixture
def held(monkeypatch):
    """``(engine, Held)`` to serve: an `AsyncEngine` over the fake runner with 64 blocks, whose steps the test holds or slows down."""
    engine = fake(monkeypatch, make(num_blocks=64))
    steps = Held(engine._thread.engine)
    yield engine, steps
    steps.release()
