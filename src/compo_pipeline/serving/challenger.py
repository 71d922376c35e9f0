"""A challenger in shadow: it is asked some requests besides, and its answers are compared.

It is asked in a thread of low priority, after the request was answered; what does not fit into its
queue, and what fails, is counted. Its alias is followed as that of the model that answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compo_pipeline.configuration.settings import PlainError, SettingsError
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.run.compute import use_one_core
from compo_pipeline.run.seeding import digest
from compo_pipeline.serving.deployment import Deployment, Follower, load_beside
from compo_pipeline.serving.exchange import Deployed, Exchange, Served
from compo_pipeline.serving.waiting import ExchangeQueue, QueuedExchange, lower_priority
from compo_pipeline.versions import versions
from compo_pipeline.versions.lineage import Lineage
from compo_pipeline.versions.model import RequestError, Vectors
from compo_pipeline.versions.settings import (
    CHAMPION,
    LEAST_REQUESTS,
    RegistrationSettings,
    SigningSettings,
)
from compo_pipeline.versions.shadow import Agreement, write_agreement
from compo_pipeline.versions.signing import key_problems

_QUEUE = 50_000_000  # bytes of the requests that may wait
_KEPT = 100_000  # compared requests, the last ones
_MEASURED, _STORED = 5, 600  # seconds between two agreements that are shown, and stored
_LAST = 10  # seconds in which the thread of a server that ends is waited for

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trial:
    """Option of serving a challenger in shadow: the alias or number of its version, and its share.

    Attributes:
        challenger: alias or number of the version.
        share: share of the requests that it is asked besides.
    """

    challenger: str
    share: float = 0.1

    def load(
        self, deployment: Deployment, registration: RegistrationSettings, device: str
    ) -> tuple[Shadow, Follower | None]:
        """Load the challenger beside the model that answers, and what follows its alias.

        Raises:
            SettingsError: there is no such version, or it has the weights of the one that answers
                and no alias that may be moved.
            VersionError: its files are not those that were registered.
            PlainError: there is not enough memory.
        """
        name, signing, champion = self.challenger, registration.signing, deployment.current.served
        if champion.version is None:
            raise SettingsError(
                "--shadow: expected a registered version that answers, not a folder"
            )
        number = int(name) if name.isdecimal() else None
        follows = number is None and name != CHAMPION and deployment.settings.reload_seconds > 0
        found = versions.find(champion.model, name, number, "--shadow")
        # A promoted challenger keeps its alias until the next one is registered: a server that is
        # started in between waits for that.
        if Lineage.from_registry(found).fingerprint == champion.fingerprint and not follows:
            raise SettingsError(
                f"--shadow: version {found.version} has the weights of version {champion.version}, "
                "which answers; name another one"
            )
        loaded, served, _ = load_beside(found, signing, device)
        log.info(
            "%s version %s is asked %g%% of the requests besides",
            *(found.name, found.version, 100 * self.share),
        )
        shadow = Shadow(deployment, loaded, served, self.share, _agreement_store(signing))
        follower = None
        if follows:
            follower = Follower(deployment, signing, found.name, name, device, shadow)
        return shadow, follower


def _agreement_store(signing: SigningSettings) -> Callable[[Served, Agreement], None]:
    """Function that stores the agreement of two models; without a signing key it stores none."""
    problem = next(key_problems(signing, signs=True), None)
    if problem is not None:
        log.warning("--shadow: the agreement is shown by /shadow, and not stored: %s", problem)
        return lambda version, agreement: None

    def store(version: Served, agreement: Agreement) -> None:
        found = versions.find(version.model, "", version.version)
        write_agreement(found, agreement, signing)

    return store


@dataclass(frozen=True)
class _Compared:
    """A compared request: the share of its rows that champion and challenger rank alike."""

    time: datetime
    share: float
    request: int


class Shadow:
    """Sends some answered requests to a challenger as well, and compares both models' rankings.

    Requests are counted for a pair of versions: when one of them is replaced, a new count begins.
    While both have the same weights, nothing is asked.

    Attributes:
        current: the challenger, which can be replaced while requests come.
    """

    def __init__(
        self,
        deployment: Deployment,
        loaded: LoadedModel,
        served: Served,
        share: float,
        store: Callable[[Served, Agreement], None],
    ) -> None:
        """Start the thread.

        Args:
            deployment: the champion; its metrics get what became of the requests.
            loaded: the challenger.
            served: its name, version and fingerprint.
            share: share of the requests that it is asked, by their ids.
            store: stores an agreement of a version; called now and then, and when a count ends.
        """
        self._deployment, self._share, self._store = deployment, share, store
        self._metrics = deployment.metrics
        self._waiting = ExchangeQueue(_QUEUE)
        self._compared: deque[_Compared] = deque(maxlen=_KEPT)
        self._agreement: Agreement | None = None
        self.swap(loaded, served)
        self._asked, self._champion = self.current, deployment.current.served
        self._thread = threading.Thread(target=self._run_thread, name="shadow", daemon=True)
        self._thread.start()

    def swap(
        self, loaded: LoadedModel, served: Served, words: frozenset[str] | None = None
    ) -> None:
        """Compare later requests with another challenger."""
        # With batches and a cache of its own, it would delay the requests of the champion.
        self.current = Deployed(self._deployment.alone(loaded), served, words)

    def __call__(self, exchange: Exchange) -> None:
        """Have the challenger asked, if both models have at least two candidates to order."""
        answered = exchange.answered
        if exchange.status != 200 or answered is None:
            return
        if len(answered.candidates or ()) < 2 or not len(answered.output):
            return
        if digest("shadow", exchange.id) >= self._share * 2**64:
            return
        if exchange.served.fingerprint == self.current.served.fingerprint:
            self._metrics.shadow.labels("same model").inc()
        elif not self._waiting.put(QueuedExchange.from_exchange(exchange)):
            self._metrics.shadow.labels("queue full").inc()

    def summary(self) -> dict[str, Any]:
        """The page `/shadow` as a dict: the challenger, and its agreement with the champion."""
        asked = self._asked.served
        return {
            "challenger": asdict(asked),
            "paused": asked.fingerprint == self._champion.fingerprint,
            "compared": len(self._compared),
            "needed": LEAST_REQUESTS,
            "agreement": None if self._agreement is None else asdict(self._agreement),
        }

    def close(self) -> None:
        """End the thread, and store the measured agreement of champion and challenger."""
        self._waiting.end()
        self._thread.join(_LAST)
        self._store_agreement()

    def _run_thread(self) -> None:
        """Ask the challenger, compare, measure and store the agreement now and then."""
        lower_priority()
        use_one_core()
        measured = stored = time.monotonic()
        while not self._waiting.ended:
            queued = self._waiting.get(time.monotonic() + 1)
            self._restart_if_replaced()
            if queued is not None:
                self._metrics.shadow.labels(self._compare(queued)).inc()
            if time.monotonic() >= measured + _MEASURED:
                self._measure()
                measured = time.monotonic()
            if time.monotonic() >= stored + _STORED:
                self._store_agreement()
                stored = time.monotonic()

    def _restart_if_replaced(self) -> None:
        """Begin a new count if the challenger's or the champion's version was replaced."""
        asked, champion = self.current, self._deployment.current.served
        if (asked.served, champion) == (self._asked.served, self._champion):
            return
        self._store_agreement()
        self._compared.clear()
        # Before the pair is replaced: `/shadow` must not show a new one with the old agreement.
        self._measure()
        self._asked, self._champion = asked, champion
        if asked.served.fingerprint == champion.fingerprint:
            log.warning(
                "--shadow: version %s pauses, as version %s, which answers, has the same weights",
                *(asked.served.version, champion.version),
            )

    def _compare(self, queued: QueuedExchange) -> str:
        """Compare both models' rankings of a request's candidates; returns the outcome as text."""
        exchange = queued.exchange
        answered, table = exchange.answered, exchange.table
        assert answered is not None and answered.similarities is not None and table is not None
        if exchange.served.fingerprint != self._champion.fingerprint:
            return "champion replaced"
        try:
            own = self._asked.model.answer(table, exchange.params).similarities
        except RequestError:
            return "failed"
        assert own is not None
        alike = (_rank_candidates(own) == _rank_candidates(answered.similarities)).all(axis=1)
        key = (*table["image"], None, answered.task, *(answered.candidates or ()))
        self._compared.append(_Compared(queued.time, float(alike.mean()), hash(key)))
        return "same" if alike.all() else "different"

    def _measure(self) -> None:
        """Update the agreement, and its metric, from the requests compared so far."""
        compared, requests = list(self._compared), [each.request for each in self._compared]
        if len(set(requests)) < LEAST_REQUESTS:
            self._agreement = None
            self._metrics.agreement.clear()
            return
        self._agreement = Agreement.from_shares(
            self._asked.served.fingerprint,
            self._champion.fingerprint,
            [each.share for each in compared],
            requests,
            (compared[0].time, compared[-1].time),
        )
        for end in ("value", "low", "high"):
            self._metrics.agreement.labels(end).set(getattr(self._agreement, end))

    def _store_agreement(self) -> None:
        """Store the models' agreement on the requests so far; a failure is logged."""
        self._measure()
        if self._agreement is None:
            return
        version, found = self._asked.served, self._agreement
        try:
            self._store(version, found)
        except Exception as error:  # noqa: BLE001  stores raise any
            reason = error.message if isinstance(error, PlainError) else repr(error)
            log.warning("the agreement in shadow cannot be stored: %s", reason)
            return
        log.info(
            "version %s orders %.1f%% [%.1f, %.1f] of %d requests as the champion does",
            *(version.version, found.value, found.low, found.high, found.requests),
        )


def _rank_candidates(similarities: Vectors) -> NDArray[np.intp]:
    """Indices [n, K] of the candidates of each row, sorted by descending similarity."""
    return np.argsort(-similarities, axis=1, kind="stable")
