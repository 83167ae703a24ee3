import pytest


@pytest.fixture
def held(service):
    """The engine takes requests and makes no step until the test lets it."""
    service.engine.held = True
    service.text = "a stream that has some tokens to read"
    return service
