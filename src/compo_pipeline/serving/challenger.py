"""A challenger beside the model that answers: asked besides (shadow), or in its place (canary).

In shadow its answers are compared and thrown away. It is asked in a thread of low priority, after
the request was answered; what does not fit into its queue, and what fails, is counted.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
from mlflow.entities.model_registry import ModelVersion
from numpy.typing import NDArray

from compo_pipeline.configuration.settings import PlainError, SettingsError
from compo_pipeline.run.seeding import digest
from compo_pipeline.serving.deployment import Deployment, load_beside
from compo_pipeline.serving.exchange import CANARY, Deployed, Exchange
from compo_pipeline.serving.metrics import Metrics
from compo_pipeline.serving.waiting import QueuedExchange, Waiting
from compo_pipeline.versions import versions
from compo_pipeline.versions.lineage import Lineage
from compo_pipeline.versions.model import Answered, RequestError, Vectors
from compo_pipeline.versions.settings import (
    CHAMPION,
    LEAST_REQUESTS,
    RegistrationSettings,
    SigningSettings,
)
from compo_pipeline.versions.shadow import Agreement, write_agreement
from compo_pipeline.versions.signing import key_problems

_QUEUE = 1000  # rows that may wait
_KEPT = 100_000  # compared requests, the last ones
_NICE = 10
_MEASURED, _STORED = 5, 600  # seconds between two agreements that are shown, and stored
_LAST = 10  # seconds in which the thread of a server that ends is waited for
_OVER = "DEADLINE_EXCEEDED"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trial:
    """What a challenger is tried for.

    Attributes:
        challenger: alias or number of the version; None is `registration.alias`.
        shadow: share of the requests that it is asked besides.
        canary: share of the requests that it answers.
    """

    challenger: str | None = None
    shadow: float = 0.0
    canary: float = 0.0

    def load(
        self, deployment: Deployment, registration: RegistrationSettings, device: str
    ) -> tuple[Shadow | None, Canary | None]:
        """Load the challenger beside the model that answers.

        Args:
            deployment: the model that answers, a registered version.
            registration: aliases and keys of the versions.
            device: where the challenger goes.

        Raises:
            SettingsError: there is no such version, or it has the weights of the one that answers.
            VersionError: its files are not those that were registered.
            PlainError: there is not enough memory.
        """
        option, champion = "--shadow" if self.shadow else "--canary", deployment.current.served
        name = self.challenger or registration.alias
        if champion.version is None:
            raise SettingsError(
                f"{option}: expected a registered version that answers, not a folder"
            )
        if name is None:
            raise SettingsError(
                f"{option}: registration.alias is null; name the version by --shadow"
            )
        number = int(name) if name.isdecimal() else None
        found = versions.find(champion.model, name, number, option)
        if Lineage.of(found).fingerprint == champion.fingerprint:
            raise SettingsError(
                f"{option}: version {found.version} has the weights of version {champion.version}, "
                "which answers; name another one"
            )
        loaded, served, words = load_beside(found, registration.signing, device)
        # One model for both, as its tokenizer has one lock.
        model = deployment.batched(loaded) if self.canary else deployment.alone(loaded)
        challenger = Deployed(model, served, words)
        shadow = canary = None
        if self.shadow:
            store = _storage(found, registration.signing)
            shadow = Shadow(challenger, self.shadow, deployment.metrics, store)
        if self.canary:
            canary = Canary(challenger, self.canary, deployment.metrics)
        log.info(
            "%s version %s answers %g%% of the requests, and is asked %g%% of the others besides",
            *(served.model, served.version, 100 * self.canary, 100 * self.shadow),
        )
        return shadow, canary


def _storage(version: ModelVersion, signing: SigningSettings) -> Callable[[Agreement], None]:
    """What stores an agreement of a version; nothing is stored without the key that signs."""
    problem = next(key_problems(signing, signs=True), None)
    if problem is None:
        return partial(write_agreement, version, signing=signing)
    log.warning("--shadow: the agreement is shown by /shadow, and not stored: %s", problem)
    return lambda agreement: None


class Canary:
    """A challenger that answers a share of the requests; one that it fails is the champion's."""

    def __init__(self, challenger: Deployed, share: float, metrics: Metrics) -> None:
        """Answer a share of the requests, by their bodies: equal ones have one model."""
        self._challenger, self._share, self._metrics = challenger, share, metrics

    def answer(self, exchange: Exchange, body: bytes) -> Answered:
        """The answer to a request whose table was read, of the challenger or the champion.

        Raises:
            RequestError: the champion does not answer it, or its time is over.
        """
        assert exchange.table is not None
        asked, champion, failure = (exchange.table, exchange.params), exchange.deployed, None
        number = int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "big")
        if number < self._share * 2**64:
            try:
                answered = self._challenger.model.answer(*asked)
            except RequestError as error:
                if error.error_code == _OVER:
                    raise
                failure = error
            else:
                exchange.deployed, exchange.role = self._challenger, CANARY
                self._metrics.canary.labels("answered").inc()
                return answered
        answered = champion.model.answer(*asked)
        # Not of a request that both models refuse.
        if failure is not None:
            self._metrics.canary.labels("failed").inc()
            log.warning("request %s: the challenger failed: %s", exchange.id, failure.args[0])
        return answered


@dataclass(frozen=True)
class _Compared:
    """A request that both models answered: the share of its rows that they order alike."""

    time: datetime
    share: float
    request: int


class Shadow:
    """Asks a challenger what the champion was asked; called with each exchange."""

    def __init__(
        self,
        challenger: Deployed,
        share: float,
        metrics: Metrics,
        store: Callable[[Agreement], None],
    ) -> None:
        """Start the thread.

        Args:
            challenger: the model.
            share: of the requests that it is asked, by their ids.
            metrics: get what became of them, and the agreement.
            store: keeps an agreement; is called now and then, and at the end.
        """
        self._challenger, self._share = challenger, share
        self._metrics, self._store = metrics, store
        self._waiting = Waiting(_QUEUE)
        self._compared: deque[_Compared] = deque(maxlen=_KEPT)
        self._champion = ""
        self._measured: Agreement | None = None
        self._stored: Agreement | None = None
        self._thread = threading.Thread(target=self._work, name="shadow", daemon=True)
        self._thread.start()

    def __call__(self, exchange: Exchange) -> None:
        """Have the challenger asked, if both models have at least two candidates to order."""
        answered = exchange.answered
        if exchange.status != 200 or exchange.role != CHAMPION or answered is None:
            return
        if len(answered.candidates or ()) < 2 or not len(answered.output):
            return
        if digest("shadow", exchange.id) >= self._share * 2**64:
            return
        if exchange.served.fingerprint == self._challenger.served.fingerprint:
            self._metrics.shadow.labels("same model").inc()
            return
        if not self._waiting.put(QueuedExchange.of(exchange)):
            self._metrics.shadow.labels("queue full").inc()

    def summary(self) -> dict[str, Any]:
        """What `/shadow` tells: the challenger, and the agreement from enough requests on."""
        measured = self._measured
        return {
            "challenger": asdict(self._challenger.served),
            "compared": len(self._compared),
            "needed": LEAST_REQUESTS,
            "agreement": None if measured is None else asdict(measured),
        }

    def _agreement(self) -> Agreement | None:
        """The agreement of the last requests; None of fewer than `LEAST_REQUESTS`."""
        compared = list(self._compared)
        if len({each.request for each in compared}) < LEAST_REQUESTS:
            return None
        return Agreement.of(
            self._challenger.served.fingerprint,
            self._champion,
            [each.share for each in compared],
            [each.request for each in compared],
            (compared[0].time, compared[-1].time),
        )

    def close(self) -> None:
        """End the thread, and store the agreement."""
        self._waiting.end()
        self._thread.join(_LAST)
        self._measure()
        self._keep()

    def _work(self) -> None:
        """The thread: ask, compare, and store now and then."""
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        measured = stored = time.monotonic()
        while not self._waiting.ended:
            if time.monotonic() >= measured + _MEASURED:
                self._measure()
                measured = time.monotonic()
            if time.monotonic() >= stored + _STORED:
                self._keep()
                stored = time.monotonic()
            queued = self._waiting.get(time.monotonic() + 1)
            if queued is not None:
                self._metrics.shadow.labels(self._compare(queued)).inc()

    def _compare(self, queued: QueuedExchange) -> str:
        """Ask the challenger, and note whether it orders alike; the outcome in a word."""
        exchange = queued.exchange
        answered, table = exchange.answered, exchange.table
        assert answered is not None and answered.similarities is not None and table is not None
        try:
            own = self._challenger.model.answer(table, exchange.params).similarities
        except RequestError:
            return "failed"
        assert own is not None
        alike = (_orders(own) == _orders(answered.similarities)).all(axis=1)
        key = (*table["image"], None, answered.task, *(answered.candidates or ()))
        if exchange.served.fingerprint != self._champion:
            self._measure()
            self._keep()
            self._compared.clear()
            self._champion = exchange.served.fingerprint
        self._compared.append(_Compared(queued.time, float(alike.mean()), hash(key)))
        return "same" if alike.all() else "different"

    def _measure(self) -> None:
        """Tell the agreement, once there is one."""
        self._measured = self._agreement()
        if self._measured is None:
            self._metrics.agreement.clear()
            return
        for end in ("value", "low", "high"):
            self._metrics.agreement.labels(end).set(getattr(self._measured, end))

    def _keep(self) -> None:
        """Store the agreement, if it is a new one."""
        found = self._measured
        if found is None or found == self._stored:
            return
        try:
            self._store(found)
            self._stored = found
        except Exception as error:  # noqa: BLE001  stores raise any
            reason = error.message if isinstance(error, PlainError) else repr(error)
            log.warning("the agreement in shadow cannot be stored: %s", reason)


def _orders(similarities: Vectors) -> NDArray[np.intp]:
    """Candidates of each row, the best first [n, K]."""
    return np.argsort(-similarities, axis=1, kind="stable")
