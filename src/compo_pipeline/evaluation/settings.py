"""What `evaluation` and `benchmarks` of the configuration may say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Precision = Literal["fp32", "bf16"]
TextProtocol = Literal["raw", "clic"]


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """How intervals are drawn: `resamples` of the images, from `seed`."""

    resamples: int = 2000
    seed: int = 0


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """How models are scored.

    Attributes:
        control: whether a plain fine-tuning control stands beside the method (training reads it
            too).
        device: auto, cpu, cuda, cuda:<n> or mps; auto is CUDA where there is a GPU, else the CPU.
        image_precision: of the image tower's forward pass. Embeddings in bf16 decide 1 to 3 items
            of 1,000 otherwise than fp32 and the papers' official code do.
        text_precision: of the text tower's forward pass.
        image_batch: images encoded at a time.
        text_batch: texts encoded at a time.
        workers: threads that decode and preprocess images.
        bootstrap: of the intervals.
        perceptual_hash: whether the contamination check decodes every training image to look
            for altered copies of evaluation images.
        gallery: items of each verdict (mended, broken, still wrong) that the report images.
    """

    control: bool = True
    device: str = "auto"
    image_precision: Precision = "fp32"
    text_precision: Precision = "fp32"
    image_batch: int = 128
    text_batch: int = 512
    workers: int = 2
    bootstrap: Bootstrap = field(default_factory=Bootstrap)
    perceptual_hash: bool = False
    gallery: int = 24

    def __post_init__(self) -> None:
        """Bounds that a type cannot say."""
        for name in ("image_batch", "text_batch", "workers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class RetrievalSettings:
    """Retrieval over the images and captions of one of the dataset's own splits.

    Attributes:
        split: name of the split in the captions table; null leaves retrieval out.
        text: the text protocol, `raw` captions or CLIC's normalised ones.
    """

    split: str | None = "test"
    text: TextProtocol = "raw"


@dataclass(frozen=True, slots=True)
class BenchmarksSettings:
    """Which benchmarks are scored and where their files lie.

    Attributes:
        root: folder with one folder of annotation files per benchmark; null leaves all of them
            out.
        images: folder that holds the images of those files; null is `<root>/images`.
        sugar_crepe: score `<root>/sugar_crepe/*.json`.
        sugar_crepe_pp: score `<root>/sugar_crepe_pp/*.json`.
        zero_shot: score `<root>/zero_shot/*.json`.
        retrieval: score retrieval over the dataset's own captions.
    """

    root: str | None = None
    images: str | None = None
    sugar_crepe: bool = True
    sugar_crepe_pp: bool = True
    zero_shot: bool = True
    retrieval: RetrievalSettings = field(default_factory=RetrievalSettings)
