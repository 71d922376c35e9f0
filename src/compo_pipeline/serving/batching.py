"""Forward passes shared by concurrent requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch

from compo_pipeline.registry.model import Encoder, RequestError, Vectors, check_time

Observe: TypeAlias = Callable[[int], None]


@dataclass
class _PendingInputs:
    """Inputs [B, ...] of one request that wait for a forward pass, and the future of its result."""

    inputs: torch.Tensor
    context: Context = field(default_factory=copy_context)
    vectors: Future[Vectors] = field(default_factory=Future)


class Batcher:
    """Encoder that computes inputs of concurrent requests in shared batches, in one thread.

    Inputs that find the thread idle are computed at once. Those that arrive meanwhile are the next
    batch, of at most `most` inputs; more than `most` at once are a batch alone.
    """

    def __init__(
        self,
        encoder: Encoder,
        most: int,
        observe: Observe,
        thread: ThreadPoolExecutor | None = None,
    ) -> None:
        """Wrap an encoder.

        Args:
            encoder: computes a batch.
            most: inputs of a batch.
            observe: is called with the size of each batch.
            thread: thread that computes. Encoders may share it. None starts one.
        """
        self._encoder, self._most, self._observe = encoder, most, observe
        self._waiting: deque[_PendingInputs] = deque()
        self._thread = thread or ThreadPoolExecutor(1, "batch")

    def __call__(self, inputs: torch.Tensor) -> Vectors:
        """Embeddings [B, D] of inputs [B, ...], once they are computed.

        Raises:
            RequestError: the request ended before.
        """
        own = _PendingInputs(inputs)
        self._waiting.append(own)
        # One pass for each arrival, of which the first that runs takes what the others came with.
        self._thread.submit(self._encode_batch)
        return own.vectors.result()

    def _encode_batch(self) -> None:
        """Encode a batch of waiting inputs, without those of requests that have ended."""
        batch: list[_PendingInputs] = []
        size = 0
        while self._waiting and (not batch or size + len(self._waiting[0].inputs) <= self._most):
            waiting = self._waiting.popleft()
            try:
                waiting.context.run(check_time)
            except RequestError as error:
                waiting.vectors.set_exception(error)
                continue
            batch.append(waiting)
            size += len(waiting.inputs)
        if batch:
            self._compute(batch)

    def _compute(self, batch: list[_PendingInputs]) -> None:
        """Encode the inputs of several requests together, or each request's alone if that fails."""
        inputs = [waiting.inputs for waiting in batch]
        try:
            vectors = self._encoder(torch.cat(inputs))
            self._observe(len(vectors))
            parts = np.split(vectors, np.cumsum([len(each) for each in inputs])[:-1])
        except Exception as error:  # noqa: BLE001  raised where the result is waited for
            if len(batch) == 1:
                batch[0].vectors.set_exception(error)
                return
            for waiting in batch:
                self._compute([waiting])
            return
        for waiting, part in zip(batch, parts, strict=True):
            waiting.vectors.set_result(part)
