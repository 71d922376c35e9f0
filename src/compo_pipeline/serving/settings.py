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
    """Rows of the table."""
    texts: PositiveInt = 1024
    """`texts`, or `labels` times `templates`."""
    characters: PositiveInt = 200_000
    """Characters of all texts together."""
    answer: PositiveInt = 30_000_000
    """Bytes of the answer: 24 for a number; `rank` repeats its texts in each row."""
    bytes: PositiveInt = 20_000_000
    """Bytes of one encoded image."""
    pixels: PositiveInt = 50_000_000
    """Pixels of one image, by its header."""
    seconds: PositiveInt = 60
    """Seconds until the answer, with reading the body and waiting for other requests."""


@settings
class RequestLogSettings:
    """Settings of the server's request log (`serving.log`): share, content, size and age."""

    folder: Path | None = None
    """Folder of the request log, which several servers may share; null writes none."""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the requests that are logged, drawn by their ids."""
    content: tuple[Literal["texts", "images"], ...] = ()
    """What is logged of the requests themselves, beside embeddings and numbers; think of the rights
    of the people who send them."""
    max_bytes: PositiveInt = 2_000_000_000
    """Bytes of the whole folder; the oldest files are deleted."""
    max_age_days: Annotated[float, Field(gt=0, le=36_500)] = 30.0
    """Days after which a file is deleted."""
    flush_seconds: PositiveFloat = 60.0
    """Seconds after which a row is in a file: what is lost where the server is killed."""


@settings
class ServingSettings:
    """Settings of the HTTP server (`serving`): device, limits, batches, cache and log."""

    device: str = "auto"
    """auto (CUDA where there is a GPU, else the CPU), cpu, cuda, cuda:<n> or mps."""
    image_root: DirectoryPath | None = None
    """The only folder whose images a request can name by their paths; null: images are sent."""
    body: PositiveInt = 32_000_000
    """Bytes of a request's body."""
    batch: PositiveInt = 64
    """Images, or texts, of concurrent requests in one forward pass; 1: each request alone."""
    text_cache: NonNegativeInt = 16_000_000
    """Bytes of embeddings of the texts that were asked last; 0: none are cached."""
    reload_seconds: NonNegativeFloat = 30.0
    """Seconds between two looks at whether the served alias names another version; 0: no look."""
    limits: ServingLimits = field(default_factory=ServingLimits)
    """Of one request."""
    log: RequestLogSettings = field(default_factory=RequestLogSettings)
    """The request log."""
