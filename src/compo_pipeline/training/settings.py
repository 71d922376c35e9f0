"""The recipe: how a method is trained, whatever the method."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from compo_pipeline.core.settings import SPEED, Share, settings

_BelowOne = Annotated[float, Field(ge=0, lt=1)]


TRUNK = "visual.trunk"
"""Name in `training.frozen` for all of an image tower but its projection."""


@settings
class OptimizerSettings:
    """Settings of AdamW and its learning rate: linear warm-up to `lr`, cosine to `lr_end`."""

    lr: NonNegativeFloat
    """Peak learning rate."""

    lr_start: NonNegativeFloat
    """Learning rate of the first step."""

    lr_end: NonNegativeFloat
    """Learning rate that the cosine would reach one step after the last."""

    warmup: _BelowOne = 0.2
    """Share of all steps in which the learning rate rises."""

    warmup_steps: NonNegativeInt | None = None
    """Number of steps in which it rises instead; null leaves it to the share."""

    betas: tuple[_BelowOne, _BelowOne] = (0.9, 0.98)
    """Of AdamW."""

    eps: PositiveFloat = 1e-8
    """Of AdamW."""

    weight_decay: NonNegativeFloat = 0.1
    """Of matrices; biases, norms and scalars have none."""

    clip_norm: PositiveFloat | None = None
    """Largest norm of the whole gradient; null does not clip it."""


@settings
class LowRankSettings:
    """Settings of low-rank adapters (LoRA) that train in place of the weights."""

    rank: PositiveInt | None = None
    """Rank of every adapter; its update is scaled by 1 / rank. Null trains the weights."""

    convolution: Literal["peft", "loralib"] = "peft"
    """The adapter of a patch convolution: peft's, of the rank above, or loralib's, of that rank
    times the kernel's width, with which SPARCL's and FSC-CLIP's figures were made.
    """


@settings
class MixtureSettings:
    """Settings of the interpolation of base and fine-tuned weights for export (WiSE-FT).

    Source: WiSE-FT (Wortsman et al. 2022).
    """

    ratio: Share | Literal["auto"] = 1.0
    """Share of the fine-tuned weights; 1 exports them as they are. auto: the items of
    `tuning.benchmarks` choose a tenth after training; a trial of tuning is not mixed then.
    """

    @property
    def before_choice(self) -> float:
        """WiSE-FT ratio as known before training; 1 if `auto` chooses the ratio after training."""
        return 1.0 if self.ratio == "auto" else self.ratio


@settings
class ValidationSettings:
    """Settings of validation during training: a loss and a metric on held-out rows."""

    every: PositiveInt | None = None
    """Steps between validations; the last step is validated too. Null: no validation."""

    split: str = "val"
    """Split of the rows; neither the one that trains nor the one that evaluation reports on."""

    rows: Annotated[int, Field(ge=2)] | None = 512
    """Largest number of images of the split, chosen once; null takes all."""

    figure: str | None = None
    """A measure beside the loss, as `benchmark/metric/name`: it decides the best step and early
    stopping. Its items are the rows (retrieval), foils of the split, or files below
    `tuning.benchmarks.root`. Null: the loss decides them."""

    def __post_init__(self) -> None:
        """Check that the figure is named as figures are."""
        if self.figure is not None and len(self.figure.split("/")) < 3:
            raise ValueError(
                f"figure: expected benchmark/metric/name, or null for the loss, got '{self.figure}'"
            )


@settings
class EarlyStoppingSettings:
    """Settings of early stopping by the validation loss or metric."""

    patience: PositiveInt | None = None
    """Validations in a row without a better value; null never stops early."""

    min_delta: NonNegativeFloat = 0.0
    """A value is better only where it beats the best before it by more than this (of the loss in
    its unit, of a figure in points).
    """


@settings
class DistributedSettings:
    """Settings of processes of this host that train together (docs/how-to/scale.md).

    On several hosts torchrun starts the processes.
    """

    nproc_per_node: PositiveInt | Literal["auto"] = 1
    """Processes; auto is one for each GPU, or one without a GPU."""

    max_restarts: NonNegativeInt = 0
    """How often all processes start again, from the last state, after one of them has ended."""


@settings
class CurriculumSettings:
    """Settings of a curriculum: rows with some kinds of hard negatives train first, alone.

    A kind that few rows ask for is learnt late, and then suddenly; while its rows train alone, it
    is learnt early. Source: curriculum learning (Bengio et al. 2009).
    """

    kinds: tuple[str, ...] = ()
    """Kinds of hard negatives, as the page of views names them (`replace_relation`); none: all rows
    train from the start."""

    epochs: PositiveInt = 1
    """First epochs in which these rows train alone, each as often as fills an epoch."""


@settings
class TrainingSettings:
    """Settings of a training: duration, batches, hardware, validation and checkpoints."""

    epochs: PositiveInt
    """Passes over the training rows; where views hold fewer epochs, they repeat, in another order.
    """

    batch_size: Annotated[int, Field(ge=2)]
    """Rows a step; one alone has nothing to be contrasted with."""

    optimizer: OptimizerSettings
    """AdamW and its schedule."""

    curriculum: CurriculumSettings = field(default_factory=CurriculumSettings)
    """Which rows train first."""

    contrast_group: Annotated[int, Field(ge=2)] | None = None
    """Rows that are contrasted with one another: batches are cut into groups of so many, whatever
    the number of processes, and the loss is the mean over the groups. Null contrasts all rows.
    """

    microbatch: Annotated[PositiveInt | None, SPEED] = None
    """Images or texts that a tower encodes at a time, for batches that do not fit into memory; the
    gradient is that of the whole batch (docs/how-to/scale.md). Null encodes all at once.
    """

    device: Annotated[str, SPEED] = "auto"
    """auto, cpu, cuda, cuda:<n> or mps; auto is CUDA where there is a GPU, else the CPU."""

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Precision of the towers' matrix products; weights, losses and optimiser are in float32. auto
    is the fastest that the device has instructions for (docs/reference/compute.md).
    """

    gradient_checkpointing: bool = False
    """Store the input of each of a tower's layers alone, and compute the layer again for its
    gradient: less memory, more time.
    """

    compile: bool = False
    """Compile the towers' transformers by torch.compile: the first steps take minutes."""

    distributed: Annotated[DistributedSettings, SPEED] = field(default_factory=DistributedSettings)
    """Processes and hosts that train together; by default this process alone."""

    workers: Annotated[NonNegativeInt, SPEED] = 1
    """Processes that read images and texts; 0 reads in the main process."""

    cache_features: bool = False
    """Embed every image once, before training; needs an image tower that is frozen, or of which
    the projection alone trains (`frozen: [visual.trunk]`).
    """

    crop_scale: tuple[float, float] | None = None
    """Least and greatest share of an image's area that a random crop keeps, drawn again at each
    step; null shows single images as evaluation does. Composites are never cropped.
    """

    frozen: tuple[str, ...] = ()
    """Names of parameters or modules (`token_embedding`) that stay as the base has them although
    their tower trains; parts of the text tower with or without the `text.` before it.
    `visual.trunk` is all of an image tower but its projection.
    """

    lora: LowRankSettings = field(default_factory=LowRankSettings)
    """Adapters on the towers that train; merged into the weights that are exported."""

    wise_ft: MixtureSettings = field(default_factory=MixtureSettings)
    """Mixture of base and fine-tuned weights that is exported."""

    save_every: Annotated[PositiveInt, SPEED] = 250
    """Steps between checkpoints of the state to resume from."""

    log_every: Annotated[PositiveInt | None, SPEED] = None
    """Steps between points of the curves; null: at most 25, and a twentieth of a short training."""

    overwrite: Annotated[bool, SPEED] = False
    """Start again where the state on disk belongs to another configuration."""

    max_steps: PositiveInt | None = None
    """Stop early (for trials); null runs all epochs."""

    validation: ValidationSettings = field(default_factory=ValidationSettings)
    """Loss and figure on rows that do not train."""

    keep: Literal["last", "best"] = "last"
    """The exported weights: those of the last step or those of the best validation; the earlier of
    two that are equal.
    """

    early_stopping: EarlyStoppingSettings = field(default_factory=EarlyStoppingSettings)
    """When training ends before its last step."""

    @property
    def selects(self) -> bool:
        """Whether validation decides which weights are exported."""
        return self.keep == "best" or self.early_stopping.patience is not None

    def __post_init__(self) -> None:
        """Check the settings that depend on one another."""
        processes = self.distributed.nproc_per_node
        if processes not in (1, "auto") and self.device.startswith("cuda:"):
            raise ValueError(
                f"device: expected auto, cuda or cpu, since each of {processes} processes has a "
                f"GPU of its own (distributed.nproc_per_node), got {self.device}"
            )
        if self.contrast_group is not None and self.batch_size % self.contrast_group:
            raise ValueError(
                f"contrast_group: expected a number that divides batch_size ({self.batch_size}), "
                f"got {self.contrast_group}"
            )
        if self.selects and self.validation.every is None:
            wanted = "keep: best" if self.keep == "best" else "early_stopping.patience"
            raise ValueError(
                f"validation.every: expected a number of steps, since {wanted} is set, got null"
            )
        if self.crop_scale is None:
            return
        if not 0 < self.crop_scale[0] <= self.crop_scale[1] <= 1:
            raise ValueError(
                f"crop_scale: expected two rising shares in (0, 1], got {list(self.crop_scale)}"
            )
        if self.cache_features:
            raise ValueError(
                "cache_features: images that are cropped at random at each step cannot be embedded "
                "once; set it to false, or crop_scale to null"
            )
