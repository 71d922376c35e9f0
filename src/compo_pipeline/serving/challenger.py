"""Shadow deployment: a challenger also answers some requests, and its answers are compared.

It is asked in a thread of low priority, after the request was answered; what does not fit into its
queue, and what fails, is counted. Its alias is followed as that of the model that answers.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compo_pipeline.core.seeding import digest
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.registry import versions
from compo_pipeline.registry.model import RequestError, Vectors
from compo_pipeline.registry.settings import CHAMPION, RegistrationSettings
from compo_pipeline.serving.deployment import Deployment, Follower, load_version
from compo_pipeline.serving.exchange import Deployed, Exchange, Served
from compo_pipeline.serving.waiting import Worker

_QUEUE = 50_000_000  # bytes of the requests that may wait

log = logging.getLogger(__name__)


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
            deployment: deployment of the champion, whose metrics count the outcomes of the
                requests.
            loaded: the challenger.
            served: served version: name, version and fingerprint.
            share: share of the requests that it is asked, by their ids.
        """
        self._deployment, self._share = deployment, share
        self._metrics = deployment.metrics
        self._counts: Counter[tuple[Served, Served, bool]] = Counter()
        self.swap(loaded, served)
        self._worker = Worker(self._compare, _QUEUE)
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
        """The page `/shadow` as a dict: the challenger, and its agreement with the champion.

        The agreement is the per cent of compared requests whose candidates both order alike.
        """
        asked, champion = self.current.served, self._deployment.current.served
        same, different = (self._counts[asked, champion, alike] for alike in (True, False))
        compared = same + different
        return {
            "challenger": asdict(asked),
            "paused": asked.fingerprint == champion.fingerprint,
            "compared": compared,
            "agreement": 100 * same / compared if compared else None,
        }

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
        alike = np.array_equal(_rank_candidates(own), _rank_candidates(answered.similarities))
        self._counts[asked.served, exchange.served, alike] += 1
        self._metrics.shadow.labels("same" if alike else "different").inc()


def _rank_candidates(similarities: Vectors) -> NDArray[np.intp]:
    """Indices [n, K] of the candidates of each row, sorted by descending similarity."""
    return np.argsort(-similarities, axis=1, kind="stable")


def shadow_of(
    name: str,
    share: float,
    deployment: Deployment,
    registration: RegistrationSettings,
    device: str,
) -> tuple[Shadow, Follower | None]:
    """Load a challenger beside the model that answers, with a follower of its alias.

    Args:
        name: alias or number of its version.
        share: share of the requests that the challenger answers too.
        deployment: the model that answers.
        registration: name and public key of the versions.
        device: device where its model goes.

    Raises:
        SettingsError: there is no such version, or it has the weights of the one that answers
            and no alias that may be moved.
        VersionError: its files are not those that were registered.
    """
    signing, champion = registration.signing, deployment.current.served
    if champion.version is None:
        raise SettingsError("--shadow: expected a registered version that answers, not a folder")
    number = int(name) if name.isdecimal() else None
    follows = number is None and name != CHAMPION and deployment.settings.reload_seconds > 0
    found = versions.find(champion.model, name, number, "--shadow")
    # A promoted challenger keeps its alias until the next one is registered: a server that is
    # started in between waits for that.
    if found.tags.get("fingerprint") == champion.fingerprint and not follows:
        raise SettingsError(
            f"--shadow: version {found.version} has the weights of version {champion.version}, "
            "which answers; name another one"
        )
    loaded, served, _ = load_version(found, signing, device)
    log.info("%s version %s is asked %g%% of the requests", found.name, found.version, 100 * share)
    shadow = Shadow(deployment, loaded, served, share)
    if not follows:
        return shadow, None
    return shadow, Follower(deployment, signing, found.name, name, device, shadow)
