"""The recipe: settings of a training that all methods share."""

from __future__ import annotations

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
    """Number of steps in which the learning rate rises, in place of `warmup`. Null uses
    `warmup`."""

    betas: tuple[_BelowOne, _BelowOne] = (0.9, 0.98)
    """Betas of AdamW."""

    eps: PositiveFloat = 1e-8
    """Epsilon of AdamW."""

    weight_decay: NonNegativeFloat = 0.1
    """Weight decay of matrices. Biases, norms and scalars have none."""

    clip_norm: PositiveFloat | None = None
    """Largest norm of the whole gradient. Null does not clip it."""


@settings
class LowRankSettings:
    """Settings of low-rank adapters (LoRA) that train in place of the weights."""

    rank: PositiveInt | None = None
    """Rank of every adapter, whose update is scaled by 1 / rank. Null trains the weights
    themselves."""

    convolution: Literal["peft", "loralib"] = "peft"
    """Adapter of a patch convolution: peft's, of `rank`, or loralib's, of `rank` times the kernel's
    width, with which SPARCL's and FSC-CLIP's figures were made."""


@settings
class MixtureSettings:
    """Settings of the interpolation of base and fine-tuned weights for export (WiSE-FT).

    Source: WiSE-FT (Wortsman et al. 2022).
    """

    ratio: Share | Literal["auto"] = 1.0
    """Share of the fine-tuned weights. 1 exports them as they are. auto: after training, the items
    of `tuning.benchmarks` choose a tenth; trials of tuning are not mixed then."""

    @property
    def before_choice(self) -> float:
        """WiSE-FT ratio as known before training, 1 if `auto` chooses it after training."""
        return 1.0 if self.ratio == "auto" else self.ratio


@settings
class ValidationSettings:
    """Settings of validation during training: a loss and a metric on held-out rows."""

    every: PositiveInt | None = None
    """Steps between validations. The last step is validated too. Null does not validate."""

    split: str = "val"
    """Split of the rows. It must neither train nor be reported by evaluation."""

    rows: Annotated[int, Field(ge=2)] | None = 512
    """Most images of the split, chosen once. Null takes all."""

    figure: str | None = None
    """Measure beside the loss, as `benchmark/metric/name`. It decides the best step and early
    stopping. Its items are the rows (retrieval), foils of the split, or files below
    `tuning.benchmarks.root`. Null: the loss decides."""

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
    """Number of validations in a row without a better value after which training ends. Null never
    stops early."""

    min_delta: NonNegativeFloat = 0.0
    """Least improvement that counts, in the unit of the loss or in points of a figure."""


@settings
class DistributedSettings:
    """Settings of processes of this host that train together (docs/how-to/scale.md).

    On several hosts torchrun starts the processes.
    """

    nproc_per_node: PositiveInt | Literal["auto"] = 1
    """Number of processes. auto is one for each GPU, or one without a GPU."""

    max_restarts: NonNegativeInt = 0
    """Number of times that all processes start again from the last state after one of them has
    failed."""


@settings
class CurriculumSettings:
    """Settings of a curriculum: rows with some kinds of hard negatives train first.

    A kind that few rows ask for is learnt late, and then suddenly; while its rows train alone, it
    is learnt early. Source: curriculum learning (Bengio et al. 2009).
    """

    kinds: tuple[str, ...] = ()
    """Kinds of hard negatives whose rows train first, as the page of views names them
    (`replace_relation`). Empty: all rows train from the start."""

    epochs: PositiveInt = 1
    """Number of first epochs in which only rows with negatives of `curriculum.kinds` train. The
    rows repeat until an epoch is full."""


@settings
class TrainingSettings:
    """Settings of a training: duration, batches, hardware, validation and checkpoints."""

    epochs: PositiveInt
    """Passes over the training rows. If views hold fewer epochs, they repeat in another order."""

    batch_size: Annotated[int, Field(ge=2)]
    """Rows per step. A single row has nothing to be contrasted with."""

    optimizer: OptimizerSettings
    """AdamW and its schedule."""

    curriculum: CurriculumSettings = CurriculumSettings()
    """Rows that train first."""

    contrast_group: Annotated[int, Field(ge=2)] | None = None
    """Rows that are contrasted with one another. Batches are cut into groups of this size, for any
    number of processes, and the loss is the mean over the groups. Null contrasts all rows."""

    microbatch: Annotated[PositiveInt | None, SPEED] = None
    """Images or texts that a tower encodes at a time, for batches that do not fit into memory. The
    gradient is that of the whole batch (docs/how-to/scale.md). Null encodes all at once."""

    device: Annotated[str, SPEED] = "auto"
    """Device of the training: auto, cpu, cuda, cuda:<n> or mps. auto is CUDA if there is a GPU,
    else the CPU."""

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Precision of the towers' matrix products. Weights, losses and optimiser are in float32. auto
    is the fastest precision for which the device has instructions (docs/reference/compute.md)."""

    gradient_checkpointing: bool = False
    """Whether to store only the input of each layer and compute the layer again for its gradient.
    This needs less memory and more time."""

    compile: bool = False
    """Whether to compile the towers' transformers with torch.compile. The first steps then take
    minutes."""

    distributed: Annotated[DistributedSettings, SPEED] = DistributedSettings()
    """Processes and hosts that train together. The default is this process only."""

    workers: Annotated[NonNegativeInt, SPEED] = 1
    """Number of processes that read images and texts. 0 reads in the main process."""

    cache_features: bool = False
    """Whether to embed every image once, before training. This needs a frozen image tower, or one
    of which only the projection trains (`frozen: [visual.trunk]`)."""

    crop_scale: tuple[float, float] | None = None
    """Least and greatest share of an image's area that a random crop keeps, drawn again at each
    step. Null shows single images as in evaluation. Composites are never cropped."""

    frozen: tuple[str, ...] = ()
    """Names of parameters or modules (`token_embedding`) that stay as in the base although their
    tower trains, with or without `text.` for parts of the text tower. `visual.trunk` is the image
    tower without its projection."""

    lora: LowRankSettings = LowRankSettings()
    """Adapters on the towers that train. They are merged into the exported weights."""

    wise_ft: MixtureSettings = MixtureSettings()
    """Mixture of base and fine-tuned weights that is exported."""

    save_every: Annotated[PositiveInt, SPEED] = 250
    """Steps between saved states to resume from."""

    log_every: Annotated[PositiveInt | None, SPEED] = None
    """Steps between points of the curves. Null is at most 25, and a twentieth of a short
    training."""

    overwrite: Annotated[bool, SPEED] = False
    """Whether to start again if the state on disk belongs to another configuration."""

    max_steps: PositiveInt | None = None
    """Step at which training ends early (for trials). Null runs all epochs."""

    validation: ValidationSettings = ValidationSettings()
    """Loss and figure on rows that do not train."""

    keep: Literal["last", "best"] = "last"
    """Weights that are exported: of the last step, or of the best validation. Of two equal
    validations, the earlier one counts."""

    early_stopping: EarlyStoppingSettings = EarlyStoppingSettings()
    """Conditions under which training ends before its last step."""

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
