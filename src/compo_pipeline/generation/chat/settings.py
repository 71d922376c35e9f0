"""Settings of an OpenAI-compatible chat endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from compo_pipeline.core.settings import settings

# Fields of an endpoint's request that have settings of their own, or must not be set.
_RESERVED_FIELDS = frozenset({"model", "messages", "temperature", "max_tokens", "stream", "n"})


def _check_url(url: str) -> str:
    """Validator that returns the URL.

    It refuses a URL that is not http(s), or has a query or fragment.
    """
    parts = urlsplit(url)
    complete = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    if not complete or parts.query or parts.fragment:
        raise ValueError(f"expected http(s)://<host>/<path> without ? and #, got {url!r}")
    return url


@settings
class EndpointSettings:
    """Settings of an OpenAI-compatible server: address, model, limits, request parameters."""

    url: Annotated[str, AfterValidator(_check_url)]
    """Address up to and without /chat/completions, such as "http://localhost:8000/v1"."""
    model: Annotated[str, Field(min_length=1)]
    """Name of the model on the server."""
    key_variable: str | None = None
    """Environment variable that holds the API key. Null sends none."""
    temperature: NonNegativeFloat = 0.0
    """Sampling temperature. 0 is greedy."""
    max_tokens: PositiveInt = 400
    """Most tokens of an answer."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request body, as the server names them. `seed: null` sends no seed."""
    timeout: PositiveFloat = 60.0
    """Seconds for a request, from the connection to the end of its reply."""
    connections: PositiveInt = 8
    """Number of concurrent requests."""
    max_requests: PositiveInt | None = None
    """Most requests of a run, repeated ones included. The run then stops, and the next one
    continues from the stored answers. Null sets no limit."""

    def __post_init__(self) -> None:
        """Further fields do not replace those of other settings."""
        if taken := sorted(_RESERVED_FIELDS & self.more.keys()):
            raise ValueError(f"more: {taken} cannot be set here")
