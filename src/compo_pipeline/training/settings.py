"""The recipe: how a method is trained, whatever the method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from compo_pipeline.configuration import nearest
from compo_pipeline.evaluation.benchmarks import BENCHMARKS


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW and its schedule: linear from `lr_start` to `lr`, then cosine to `lr_end`.

    Attributes:
        lr: peak learning rate.
        lr_start: at the first step.
        lr_end: at the last step.
        warmup: share of all steps that rise, 0..1.
        warmup_steps: that many steps rise instead; null leaves it to the share.
        betas: of AdamW.
        eps: of AdamW.
        weight_decay: of matrices; biases, norms and scalars have none.
        clip_norm: largest norm of the whole gradient; null leaves it alone.
    """

    lr: float
    lr_start: float
    lr_end: float
    warmup: float = 0.2
    warmup_steps: int | None = None
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        """Bounds that a type cannot say."""
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup: expected a share of the steps in [0, 1), got {self.warmup}")
        if self.warmup_steps is not None and self.warmup_steps < 0:
            raise ValueError(f"warmup_steps: expected at least 0, got {self.warmup_steps}")


@dataclass(frozen=True)
class LowRankSettings:
    """Low-rank adapters (LoRA) that train in place of the weights.

    Attributes:
        rank: of every adapter; null trains the weights themselves.
    """

    rank: int | None = None

    def __post_init__(self) -> None:
        """Bounds that a type cannot say."""
        if self.rank is not None and self.rank < 1:
            raise ValueError(f"rank: expected at least 1, or null for no adapters, got {self.rank}")


@dataclass(frozen=True)
class WiseFtSettings:
    """The exported weights: a mixture of the base's and the fine-tuned.

    Source: WiSE-FT (Wortsman et al. 2022).

    Attributes:
        ratio: share of the fine-tuned weights; 1 exports them as they are.
    """

    ratio: float = 1.0

    def __post_init__(self) -> None:
        """Bounds that a type cannot say."""
        if not 0 <= self.ratio <= 1:
            raise ValueError(f"ratio: expected a share in [0, 1], got {self.ratio}")


@dataclass(frozen=True)
class BenchmarkFiles:
    """Benchmark files of the validation split.

    Attributes:
        root: folder with one folder of annotation files per benchmark.
        images: folder of the images that those files name; null is `<root>/images`.
    """

    root: str | None = None
    images: str | None = None


@dataclass(frozen=True)
class ValidationSettings:
    """Validation during training: a loss and a figure on rows that do not train.

    Attributes:
        every: steps between validations; the last step is validated too. Null: no validation.
        split: of the rows; neither the one that trains nor the one that evaluation reports on.
        rows: at most so many images of the split, chosen once; null takes all.
        figure: what is measured beside the loss, as `benchmark/metric/name`, and what the best
            step and early stopping go by. Null: they go by the loss.
        benchmarks: files of the figure's benchmark; retrieval needs none, it ranks the rows.
    """

    every: int | None = None
    split: str = "val"
    rows: int | None = 512
    figure: str | None = None
    benchmarks: BenchmarkFiles = field(default_factory=BenchmarkFiles)

    def __post_init__(self) -> None:
        """Bounds that a type cannot say."""
        for name, least in (("every", 1), ("rows", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}: expected at least {least}, or null, got {value}")
        if self.figure is None:
            return
        benchmark, *rest = self.figure.split("/")
        if benchmark not in BENCHMARKS or len(rest) < 2:
            raise ValueError(
                "figure: expected benchmark/metric/name with a benchmark of "
                f"{', '.join(BENCHMARKS)}, or null for the loss, got '{self.figure}'"
                f"{nearest(benchmark, BENCHMARKS)}"
            )
        if benchmark != "retrieval" and self.benchmarks.root is None:
            raise ValueError(
                f"benchmarks.root: expected the folder that holds {benchmark}/, since figure is "
                f"'{self.figure}', got null"
            )


@dataclass(frozen=True)
class EarlyStoppingSettings:
    """When training ends before its last step.

    Attributes:
        patience: validations in a row without a better value; null never stops early.
        min_delta: a value is better only where it beats the best before it by more than this (of
            the loss in its unit, of a figure in points).
    """

    patience: int | None = None
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        """Bounds that a type cannot say."""
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience: expected at least 1, or null, got {self.patience}")
        if self.min_delta < 0:
            raise ValueError(f"min_delta: expected at least 0, got {self.min_delta}")


@dataclass(frozen=True)
class TrainingSettings:
    """How long, how large, where, and how safe.

    Attributes:
        epochs: passes over the training rows; where views hold fewer epochs, they come round
            again in another order.
        batch_size: rows a step.
        optimizer: AdamW and its schedule.
        device: auto, cpu, cuda, cuda:<n> or mps; auto is CUDA where there is a GPU, else the CPU.
        precision: of the towers' matrix products; weights, losses and optimiser are in float32.
            auto is the fastest that the device has instructions for (docs/compute.md).
        workers: processes that read images and texts; 0 reads in the main process.
        cache_features: embed every image once, before training; needs a frozen image tower.
        crop_scale: least and greatest share of an image's area that a random crop keeps, drawn
            anew at each step; null shows single images as evaluation does. Composites never
            are cropped.
        frozen: names of parameters or modules (`token_embedding`) that stay as the base has them
            though their tower trains.
        lora: adapters on the towers that train; merged into the weights that are exported.
        wise_ft: mixture of base and fine-tuned weights that is exported.
        save_every: steps between checkpoints of the state to resume from.
        log_every: steps between points of the curves.
        overwrite: start afresh where the state on disk belongs to another configuration.
        max_steps: stop early (for trials); null runs all epochs.
        validation: loss and figure on rows that do not train.
        keep: the exported weights, those of the last step or those of the best validation; the
            earlier of two that are equal.
        early_stopping: when training ends before its last step.
    """

    epochs: int
    batch_size: int
    optimizer: OptimizerSettings
    device: str = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    workers: int = 1
    cache_features: bool = False
    crop_scale: tuple[float, float] | None = None
    frozen: tuple[str, ...] = ()
    lora: LowRankSettings = field(default_factory=LowRankSettings)
    wise_ft: WiseFtSettings = field(default_factory=WiseFtSettings)
    save_every: int = 250
    log_every: int = 25
    overwrite: bool = False
    max_steps: int | None = None
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    keep: Literal["last", "best"] = "last"
    early_stopping: EarlyStoppingSettings = field(default_factory=EarlyStoppingSettings)

    @property
    def selects(self) -> bool:
        """Whether validation decides which weights come out."""
        return self.keep == "best" or self.early_stopping.patience is not None

    def __post_init__(self) -> None:
        """Bounds that a type cannot say."""
        if self.selects and self.validation.every is None:
            wanted = "keep: best" if self.keep == "best" else "early_stopping.patience"
            raise ValueError(
                f"validation.every: expected a number of steps, since {wanted} is set, got null"
            )
        for name in ("epochs", "batch_size", "save_every", "log_every", "max_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if self.workers < 0:
            raise ValueError(f"workers: expected at least 0, got {self.workers}")
        if self.crop_scale is None:
            return
        if not 0 < self.crop_scale[0] <= self.crop_scale[1] <= 1:
            raise ValueError(
                f"crop_scale: expected two rising shares in (0, 1], got {list(self.crop_scale)}"
            )
        if self.cache_features:
            raise ValueError(
                "cache_features: images that are cropped anew at each step cannot be embedded "
                "once; set it to false, or crop_scale to null"
            )


# What changes how a run proceeds but not what comes out of it, so not part of its fingerprint.
# The mixture is made of the trained weights, after the fact.
INCIDENTAL = ("workers", "save_every", "log_every", "overwrite", "wise_ft")
