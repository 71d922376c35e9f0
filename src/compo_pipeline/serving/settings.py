"""Settings of the server."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    DirectoryPath,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from compo_pipeline.core.settings import settings


@settings
class ServingLimits:
    """Limits of one request to the server: rows, texts, bytes, pixels and seconds."""

    rows: PositiveInt = 1000
    """Most rows of a request's table."""
    texts: PositiveInt = 1024
    """Most `texts` of a request, or `labels` times `templates`."""
    characters: PositiveInt = 200_000
    """Most characters of all texts together."""
    answer: PositiveInt = 30_000_000
    """Most bytes of the answer, 24 for a number. `rank` repeats its texts in each row."""
    bytes: PositiveInt = 20_000_000
    """Most bytes of one encoded image."""
    pixels: PositiveInt = 50_000_000
    """Most pixels of one image, by its header."""
    seconds: PositiveInt = 60
    """Seconds until the answer, including reading the body and waiting for other requests."""


@settings
class RequestLogSettings:
    """Settings of the server's request log (`serving.log`): share, content, size and age."""

    folder: Path | None = None
    """Folder of the request log, which several servers may share. Null writes none."""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the requests that are logged, drawn by their ids."""
    content: tuple[Literal["texts", "images"], ...] = ()
    """Parts of requests that are logged besides embeddings and numbers. Consider the rights of the
    people who send them."""
    max_bytes: PositiveInt = 2_000_000_000
    """Most bytes of the whole folder. The oldest files are deleted."""
    max_age_days: Annotated[float, Field(gt=0, le=36_500)] = 30.0
    """Age in days at which a file is deleted."""
    flush_seconds: PositiveFloat = 60.0
    """Seconds between writes of logged rows to files. A killed server loses the rows since the
    last write."""


@settings
class ServingSettings:
    """Settings of the HTTP server: device, limits, batches, cache and log."""

    device: str = "auto"
    """Device of the model: auto (CUDA if there is a GPU, else the CPU), cpu, cuda, cuda:<n> or
    mps."""
    image_root: DirectoryPath | None = None
    """The only folder from which a request can name images by path. Null: requests must contain the
    images."""
    body: PositiveInt = 32_000_000
    """Most bytes of a request's body."""
    batch: PositiveInt = 64
    """Images, or texts, of concurrent requests that share a forward pass. 1 answers each request
    alone."""
    text_cache: NonNegativeInt = 16_000_000
    """Size of the cache of recent text embeddings in bytes. 0 caches none."""
    reload_seconds: NonNegativeFloat = 30.0
    """Seconds between checks whether the served alias names another version. 0 never checks."""
    limits: ServingLimits = field(default_factory=ServingLimits)
    """Limits of one request."""
    log: RequestLogSettings = field(default_factory=RequestLogSettings)
    """The request log."""
