"""A challenger beside the model that answers: asked besides (shadow), or in its place (canary).

In shadow its answers are compared and thrown away. It is asked in a thread of low priority, after
the request was answered; what does not fit into its queue, and what fails, is counted. Its alias is
followed as that of the model that answers.
"""

from __future__ import annotations

import hashlib
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
from compo_pipeline.run.compute import use_one_core
from compo_pipeline.run.seeding import digest
from compo_pipeline.serving.deployment import Challenger, Deployment, Follower, load_beside
from compo_pipeline.serving.exchange import CANARY, Exchange, Served
from compo_pipeline.serving.telemetry import Metrics
from compo_pipeline.serving.waiting import ExchangeQueue, QueuedExchange, lower_priority
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
_MEASURED, _STORED = 5, 600  # seconds between two agreements that are shown, and stored
_LAST = 10  # seconds in which the thread of a server that ends is waited for
_OVER = "DEADLINE_EXCEEDED"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trial:
    """Options of serving a challenger: its version, and its shares of shadow and canary requests.

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
    ) -> tuple[Shadow | None, Canary | None, Follower | None]:
        """Load the challenger, and make the objects that send it requests and follow its alias.

        Args:
            deployment: the model that answers, a registered version.
            registration: aliases and keys of the versions.
            device: where the challenger goes.

        Returns:
            What asks it, and what follows its alias.

        Raises:
            SettingsError: there is no such version, or it has the weights of the one that answers
                and no alias that may be moved.
            VersionError: its files are not those that were registered.
            PlainError: there is not enough memory.
        """
        option, champion = "--shadow" if self.shadow else "--canary", deployment.current.served
        name, signing = self.challenger or registration.alias, registration.signing
        if champion.version is None:
            raise SettingsError(
                f"{option}: expected a registered version that answers, not a folder"
            )
        if name is None:
            raise SettingsError(
                f"{option}: registration.alias is null; name the version by --shadow"
            )
        number = int(name) if name.isdecimal() else None
        follows = number is None and name != CHAMPION and deployment.settings.reload_seconds > 0
        found = versions.find(champion.model, name, number, option)
        # A promoted challenger keeps its alias until the next one is registered: a server that is
        # started in between waits for that.
        if Lineage.from_registry(found).fingerprint == champion.fingerprint and not follows:
            raise SettingsError(
                f"{option}: version {found.version} has the weights of version {champion.version}, "
                "which answers; name another one"
            )
        # One model for both, as its tokenizer has one lock.
        prepare = deployment.batched if self.canary else deployment.alone
        challenger = Challenger(prepare, *load_beside(found, signing, device))
        parts = [f"answers {100 * self.canary:g}% of the requests"] if self.canary else []
        if self.shadow:
            others = "others" if self.canary else "requests"
            parts.append(f"is asked {100 * self.shadow:g}% of the {others} besides")
        log.info("%s version %s %s", found.name, found.version, " and ".join(parts))
        shadow = canary = follower = None
        if self.shadow:
            shadow = Shadow(deployment, challenger, self.shadow, _agreement_store(signing))
        if self.canary:
            canary = Canary(challenger, self.canary, deployment.metrics)
        if follows:
            follower = Follower(deployment, signing, found.name, name, device, challenger)
        return shadow, canary, follower


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


class Canary:
    """Sends a share of the requests to a challenger; if it fails, the champion answers."""

    def __init__(self, challenger: Challenger, share: float, metrics: Metrics) -> None:
        """Answer a share of the requests, by their bodies: equal ones have one model."""
        self._challenger, self._share, self._metrics = challenger, share, metrics

    def answer(self, exchange: Exchange, body: bytes) -> Answered:
        """Answer by the challenger if a request falls into its share, else by the champion.

        Raises:
            RequestError: the champion does not answer it, or its time is over.
        """
        assert exchange.table is not None
        asked, champion, failure = (exchange.table, exchange.params), exchange.deployed, None
        number = int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "big")
        if number < self._share * 2**64:
            challenger = self._challenger.current
            try:
                answered = challenger.model.answer(*asked)
            except RequestError as error:
                if error.error_code == _OVER:
                    raise
                failure = error
            else:
                exchange.deployed, exchange.role = challenger, CANARY
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
    """A compared request: the share of its rows that champion and challenger rank alike."""

    time: datetime
    share: float
    request: int


class Shadow:
    """Sends some answered requests to a challenger as well, and compares both models' rankings.

    Requests are counted for a pair of versions: when one of them is replaced, a new count begins.
    While both have the same weights, nothing is asked.
    """

    def __init__(
        self,
        deployment: Deployment,
        challenger: Challenger,
        share: float,
        store: Callable[[Served, Agreement], None],
    ) -> None:
        """Start the thread.

        Args:
            deployment: the champion; its metrics get what became of the requests.
            challenger: what is asked besides.
            share: of the requests that it is asked, by their ids.
            store: stores an agreement of a version; is called now and then, when a count ends, and
                at the end.
        """
        self._deployment, self._challenger, self._share = deployment, challenger, share
        self._metrics, self._store = deployment.metrics, store
        self._waiting = ExchangeQueue(_QUEUE)
        self._compared: deque[_Compared] = deque(maxlen=_KEPT)
        self._asked, self._champion = challenger.current, ""
        self._measured: Agreement | None = None
        self._counted: Agreement | None = None
        # By challenger, and fingerprint of the champion.
        self._unstored: dict[tuple[Served, str], Agreement] = {}
        self._thread = threading.Thread(target=self._run_thread, name="shadow", daemon=True)
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
        if exchange.served.fingerprint == self._challenger.current.served.fingerprint:
            self._metrics.shadow.labels("same model").inc()
            return
        if not self._waiting.put(QueuedExchange.from_exchange(exchange)):
            self._metrics.shadow.labels("queue full").inc()

    def summary(self) -> dict[str, Any]:
        """The page `/shadow` as a dict: the challenger, and its agreement with the champion."""
        asked, measured = self._asked.served, self._measured
        return {
            "challenger": asdict(asked),
            "paused": asked.fingerprint == self._champion,
            "compared": len(self._compared),
            "needed": LEAST_REQUESTS,
            "agreement": None if measured is None else asdict(measured),
        }

    def _agreement(self) -> Agreement | None:
        """Agreement of both models on the last requests; None below `LEAST_REQUESTS`."""
        compared = list(self._compared)
        if len({each.request for each in compared}) < LEAST_REQUESTS:
            return None
        return Agreement.from_shares(
            self._asked.served.fingerprint,
            self._champion,
            [each.share for each in compared],
            [each.request for each in compared],
            (compared[0].time, compared[-1].time),
        )

    def close(self) -> None:
        """End the thread, and store the measured agreement of champion and challenger."""
        self._waiting.end()
        self._thread.join(_LAST)
        self._update_agreement()
        self._store_agreements()

    def _run_thread(self) -> None:
        """Main loop of the thread: ask the challenger, compare, store the agreement regularly."""
        lower_priority()
        use_one_core()
        measured = stored = time.monotonic()
        while not self._waiting.ended:
            if time.monotonic() >= measured + _MEASURED:
                self._update_agreement()
                measured = time.monotonic()
            if time.monotonic() >= stored + _STORED:
                self._store_agreements()
                stored = time.monotonic()
            queued = self._waiting.get(time.monotonic() + 1)
            self._restart_if_replaced()
            if queued is not None:
                self._metrics.shadow.labels(self._compare(queued)).inc()

    def _restart_if_replaced(self) -> None:
        """Restart the comparison if the challenger's or the champion's version was replaced."""
        asked, champion = self._challenger.current, self._deployment.current.served
        if (asked.served, champion.fingerprint) == (self._asked.served, self._champion):
            return
        self._update_agreement()
        self._store_agreements()
        self._compared.clear()
        # Before the pair is replaced: `/shadow` must not show a new one with the old agreement.
        self._update_agreement()
        self._asked, self._champion = asked, champion.fingerprint
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
        if exchange.served.fingerprint != self._champion:
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

    def _update_agreement(self) -> None:
        """Update the shown agreement and its metric from the requests compared so far."""
        self._measured = self._agreement()
        if self._measured is None:
            self._metrics.agreement.clear()
            return
        for end in ("value", "low", "high"):
            self._metrics.agreement.labels(end).set(getattr(self._measured, end))

    def _store_agreements(self) -> None:
        """Store the models' agreement if it is new, and earlier ones that could not be stored."""
        if self._measured is not None and self._measured != self._counted:
            self._unstored[self._asked.served, self._champion] = self._counted = self._measured
        for pair, agreement in list(self._unstored.items()):
            try:
                self._store(pair[0], agreement)
                del self._unstored[pair]
                log.info(
                    "version %s orders %.1f%% [%.1f, %.1f] of %d requests as the champion does",
                    *(pair[0].version, agreement.value, agreement.low, agreement.high),
                    agreement.requests,
                )
            except Exception as error:  # noqa: BLE001  stores raise any
                reason = error.message if isinstance(error, PlainError) else repr(error)
                log.warning("the agreement in shadow cannot be stored: %s", reason)


def _rank_candidates(similarities: Vectors) -> NDArray[np.intp]:
    """Indices [n, K] of the candidates of each row, sorted by descending similarity."""
    return np.argsort(-similarities, axis=1, kind="stable")
