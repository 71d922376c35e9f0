"""Where an endpoint is."""

from pathlib import Path

import pytest

from compo_pipeline.chat.endpoint import Endpoint
from compo_pipeline.chat.settings import EndpointSettings


@pytest.mark.parametrize(
    ("url", "host", "local"),
    [
        ("http://localhost:8000/v1", "localhost:8000", True),
        ("http://127.0.0.1/v1", "127.0.0.1", True),
        ("http://127.8.9.1/v1", "127.8.9.1", True),
        ("http://[::1]:8000/v1", "[::1]:8000", True),
        ("https://me:secret@api.example.com/v1", "api.example.com", False),
        ("http://192.168.0.7:8000/v1", "192.168.0.7:8000", False),
        ("http://localhost.example.com/v1", "localhost.example.com", False),
        ("http://0.0.0.1/v1", "0.0.0.1", False),
    ],
)
def test_the_host_of_a_server(tmp_path: Path, url: str, host: str, local: bool) -> None:
    settings = EndpointSettings(url=url, model="m")
    endpoint = Endpoint(settings, key="k", seed=0, cache=tmp_path / "answers.sqlite")
    assert (endpoint.host, endpoint.is_local) == (host, local)
