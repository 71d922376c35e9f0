"""A challenger in shadow: it is asked some requests besides, and its answers are compared.

It is asked in a thread of low priority, after the request was answered; what does not fit into its
queue, and what fails, is counted. Its alias is followed as that of the model that answers.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compo_pipeline.configuration.settings import SettingsError
from compo_pipeline.evaluation.statistics import Part, level
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.run.seeding import digest
from compo_pipeline.serving.deployment import Deployment, Follower, load_version
from compo_pipeline.serving.exchange import Deployed, Exchange, Served
from compo_pipeline.serving.waiting import Worker
from compo_pipeline.versions import versions
from compo_pipeline.versions.lineage import Lineage
from compo_pipeline.versions.model import RequestError, Vectors
from compo_pipeline.versions.settings import CHAMPION, RegistrationSettings

# Different requests from which on an agreement is shown.
LEAST_REQUESTS = 500
_QUEUE = 50_000_000  # bytes of the requests that may wait
_KEPT = 100_000  # compared requests, the last ones
_SECONDS = 5  # between two agreements in the metrics

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
        loaded, served, _ = load_version(found, signing, device)
        log.info(
            "%s version %s is asked %g%% of the requests besides",
            *(found.name, found.version, 100 * self.share),
        )
        shadow = Shadow(deployment, loaded, served, self.share)
        if not follows:
            return shadow, None
        return shadow, Follower(deployment, signing, found.name, name, device, shadow)


@dataclass(frozen=True)
class _Compared:
    """A compared request: who answered it, and the share of its rows that both rank alike."""

    pair: tuple[Served, Served]
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
        self, deployment: Deployment, loaded: LoadedModel, served: Served, share: float
    ) -> None:
        """Start the thread.

        Args:
            deployment: the champion; its metrics get what became of the requests.
            loaded: the challenger.
            served: its name, version and fingerprint.
            share: share of the requests that it is asked, by their ids.
        """
        self._deployment, self._share = deployment, share
        self._metrics = deployment.metrics
        self._compared: deque[_Compared] = deque(maxlen=_KEPT)
        self.swap(loaded, served)
        self._worker = Worker(self._compare, self._show, _SECONDS, _QUEUE)
        self.close = self._worker.close

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
        elif not self._worker.put(exchange):
            self._metrics.shadow.labels("queue full").inc()

    def summary(self) -> dict[str, Any]:
        """The page `/shadow` as a dict: the challenger, and its agreement with the champion."""
        asked, champion = self._pair()
        compared = self._compared_by_both()
        return {
            "challenger": asdict(asked),
            "paused": asked.fingerprint == champion.fingerprint,
            "compared": len(compared),
            "needed": LEAST_REQUESTS,
            "agreement": _agreement(compared),
        }

    def _pair(self) -> tuple[Served, Served]:
        return self.current.served, self._deployment.current.served

    def _compared_by_both(self) -> list[_Compared]:
        """The requests that the present challenger and champion have answered."""
        pair = self._pair()
        return [each for each in list(self._compared) if each.pair == pair]

    def _compare(self, exchange: Exchange) -> None:
        """Compare both models' rankings of a request's candidates."""
        answered, table, asked = exchange.answered, exchange.table, self.current
        assert answered is not None and answered.similarities is not None and table is not None
        try:
            own = asked.model.answer(table, exchange.params).similarities
        except RequestError:
            self._metrics.shadow.labels("failed").inc()
            return
        assert own is not None
        alike = (_rank_candidates(own) == _rank_candidates(answered.similarities)).all(axis=1)
        request = hash((*table["image"], None, answered.task, *(answered.candidates or ())))
        pair = asked.served, exchange.served
        self._compared.append(_Compared(pair, exchange.time, float(alike.mean()), request))
        self._metrics.shadow.labels("same" if alike.all() else "different").inc()

    def _show(self) -> None:
        """Set the metric of the agreement."""
        found = _agreement(self._compared_by_both())
        if found is None:
            self._metrics.agreement.clear()
            return
        for end in ("value", "low", "high"):
            self._metrics.agreement.labels(end).set(found[end])


def _agreement(compared: list[_Compared]) -> dict[str, Any] | None:
    """Share of rows that both models rank alike, in per cent with its 95% interval, over requests.

    Equal requests are one cluster; None of too few different ones.
    """
    requests = np.unique([each.request for each in compared], return_inverse=True)[1]
    if len(set(requests)) < LEAST_REQUESTS:
        return None
    shares = np.array([[each.share for each in compared]])
    measured = level([Part(100 * shares, requests)], [1.0])
    low, high = measured.interval
    since, until = (each.time.isoformat(timespec="seconds") for each in (compared[0], compared[-1]))
    numbers = {"requests": measured.images, "value": measured.value, "low": low, "high": high}
    return {**numbers, "since": since, "until": until}


def _rank_candidates(similarities: Vectors) -> NDArray[np.intp]:
    """Indices [n, K] of the candidates of each row, sorted by descending similarity."""
    return np.argsort(-similarities, axis=1, kind="stable")
