"""What the paper of a recipe says of its data and its cost, as settings of its environment."""

from __future__ import annotations

from pydantic import PositiveFloat, PositiveInt

from compo_pipeline.configuration.settings import settings


@settings
class RecipeFacts:
    """Facts of a recipe's paper (`recipe`): its data, training rows, disk space and GPU hours."""

    source: str | None = None
    """The paper and its sections; null: the recipe is of no paper."""
    data: str = ""
    """The data, and their layout below the root."""
    rows: PositiveInt | None = None
    """Training rows before validation."""
    images: PositiveInt | None = None
    """Images of these rows; null: as many."""
    rows_from: str = "the paper"
    """Where their number is from."""
    images_gb: PositiveFloat | None = None
    """Disk of the images, an estimate: at the size in which COCO or img2dataset has them."""
    gpus: str | None = None
    """The paper's hardware."""
    gpu_hours: PositiveFloat | None = None
    """The paper's upper bound of one training: hours times GPUs; null: not given."""
