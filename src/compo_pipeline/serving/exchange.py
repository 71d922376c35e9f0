"""A request to the served model and its answer, as the server hands them on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from compo_pipeline import __version__

if TYPE_CHECKING:
    import pandas as pd

    from compo_pipeline.registry.model import Answered, ImageTextModel


_ROW = 1000  # bytes of a row beside its cells and vectors


@dataclass(frozen=True)
class Served:
    """The answer of `/version`: registered model and version, and a hash of the weights."""

    model: str
    version: int | None
    fingerprint: str
    program: str = __version__


@dataclass(frozen=True)
class Deployed:
    """A served model with its `/version` record, and the words of its training captions."""

    model: ImageTextModel
    served: Served
    words: frozenset[str] | None = None


@dataclass
class Exchange:
    """A request to the served model with its answer, status and duration.

    Attributes:
        id: id of the request, as in the log.
        deployed: model that answered.
        status: status of the response.
        seconds: seconds from the request's header to the response.
        table: the columns image and text; None if the body cannot be read as a table.
        params: parameters of the request.
        answered: the answer; None if there is none.
        refusal: why there is none.
        time: when it was answered.
    """

    id: str
    deployed: Deployed
    status: int = 200
    seconds: float = 0.0
    table: pd.DataFrame | None = None
    params: dict[str, Any] | None = None
    answered: Answered | None = None
    refusal: str | None = None
    time: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def served(self) -> Served:
        """The `/version` record of the model that answered the request."""
        return self.deployed.served

    @property
    def task(self) -> str:
        """Name of the task that was answered (such as `rank`), or `none` without an answer."""
        return "none" if self.answered is None else self.answered.task

    @property
    def size(self) -> int:
        """Bytes of an answered request: its cells, candidates and vectors."""
        answered, table = self.answered, self.table
        assert answered is not None and table is not None
        arrays = answered.images, answered.texts, answered.similarities
        cells = [*(cell for name in table for cell in table[name]), *(answered.candidates or ())]
        vectors = sum(each.nbytes for each in arrays if each is not None)
        return sum(map(len, cells)) + vectors + _ROW * len(table)


Observer: TypeAlias = Callable[[Exchange], None]
