"""Processes that train one model together, and their communication.

Every process computes the loss of the whole batch, from embeddings that each gives a share of.
Gradients are therefore summed over the processes, not averaged: a process holds the part of the
gradient that goes through the rows of its own share. What is small (counts, progress) is exchanged
in main memory, so that it does not wait for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from compo_pipeline.core.settings import SettingsError

Value = TypeVar("Value")


def share(count: int, part: int, parts: int) -> slice:
    """Slice of `count` rows for one of `parts` parts, whose sizes differ by one row at most."""
    return slice(count * part // parts, count * (part + 1) // parts)


@dataclass(frozen=True)
class Ranks:
    """Rank of this process and number of processes that train together, by default one.

    Torch's process group of several must have a backend for main memory (gloo).
    """

    rank: int = 0
    """Number of this process."""

    world: int = 1
    """Number of processes."""

    @property
    def first(self) -> bool:
        """Whether this is the process of rank 0, which logs, validates and saves."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Slice of `count` rows that this process computes."""
        return share(count, self.rank, self.world)

    def refuse_uneven(self, rows: int, group: int | None) -> None:
        """Raise an error unless a batch can be split evenly among the processes.

        Args:
            rows: rows of a batch.
            group: rows that are contrasted with one another, where not all are.

        Raises:
            SettingsError: the processes do not divide the batch, or would split a group.
        """
        batch = f"{self.world} processes cannot share a batch of {rows} rows (training.batch_size)"
        if rows % self.world:
            raise SettingsError(
                f"training.distributed: {batch} evenly; expected a number of processes "
                f"that divides {rows}"
            )
        if group is not None and rows // group % self.world:
            raise SettingsError(
                f"training.distributed: {batch} without splitting a group of {group} rows "
                f"(training.contrast_group); expected a number of processes that divides the "
                f"{rows // group} groups"
            )

    def gather(self, own: Tensor, count: int) -> Tensor:
        """Rows [count, ...] of all processes, from this process's share, with a gradient.

        The gradient of the other processes' rows is theirs: no process has it twice.
        """
        if self.world == 1:
            return own
        gathered: Tensor = _Gather.apply(own, count, self)
        return gathered

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum gradients over the processes, in place.

        A parameter that has none anywhere keeps none.
        """
        if self.world == 1:
            return
        have = torch.tensor([parameter.grad is not None for parameter in parameters]).int()
        dist.all_reduce(have, dist.ReduceOp.MAX)
        shared = [one for one, any_has in zip(parameters, have.tolist(), strict=True) if any_has]
        for parameter in shared:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in shared if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        sums = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, summed in zip(gradients, sums, strict=True):
            gradient.copy_(summed.view_as(gradient))

    def gather_values(self, value: Value) -> list[Value]:
        """List of the values of all processes, by rank."""
        if self.world == 1:
            return [value]
        found = [value] * self.world
        dist.all_gather_object(found, value)
        return found

    def from_first(self, find: Callable[[], Value]) -> Value:
        """Value that the first process computes and sends to all others."""
        if self.world == 1:
            return find()
        found = [find() if self.first else None]
        dist.broadcast_object_list(found)
        return found[0]  # type: ignore[return-value]


ALONE = Ranks()


class _Gather(torch.autograd.Function):
    """Autograd function that gathers the rows of all processes.

    Gradients reach only the own rows.
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, count: int, ranks: Ranks) -> Tensor:
        """Rows of all processes, in the order of their ranks."""
        ctx.rows = ranks.share(count)
        shares = [share(count, rank, ranks.world) for rank in range(ranks.world)]
        sizes = [rows.stop - rows.start for rows in shares]
        filler = own.new_zeros(max(sizes) - len(own), *own.shape[1:])
        # Shares of equal size are all that every backend exchanges, and no bool.
        sent = torch.cat([own, filler]).to(torch.uint8 if own.dtype == torch.bool else own.dtype)
        parts = [torch.empty_like(sent) for _ in sizes]
        dist.all_gather(parts, sent.contiguous())
        rows = [part[:size] for part, size in zip(parts, sizes, strict=True)]
        return torch.cat(rows).to(own.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Gradient of this process's own rows."""
        return gradients[0][ctx.rows], None, None
