"""How often a challenger orders texts as the champion does, on requests that a server answered.

`compo-pipeline serve --shadow` measures it, and stores it as an artefact of the run that the
challenger was registered from, since a version's own files are sealed:

    shadow/<challenger>-<champion>/agreement.json   both by their fingerprints
    shadow/<challenger>-<champion>/model.sig        the signature, where a key signs

A gate rule may ask for it.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import mlflow
import numpy as np
from mlflow.entities.model_registry import ModelVersion

from compo_pipeline.configuration.settings import PlainError, parse
from compo_pipeline.evaluation.statistics import Part, level
from compo_pipeline.storage.files import write_json
from compo_pipeline.storage.untrusted import read_json
from compo_pipeline.versions import signing as signing_keys
from compo_pipeline.versions.settings import SigningSettings

COLLECT = "compo-pipeline serve --shadow <alias>"
_FOLDER, _FILE = "shadow", "agreement.json"
_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often challenger and champion rank a request's texts alike, in per cent with an interval.

    Attributes:
        challenger: fingerprint of its weights.
        champion: likewise.
        requests: number of different requests that were compared.
        value: mean over the requests of the share of a request's rows.
        low: lower end of its 95% interval, over requests.
        high: upper end.
        since: time of the first request, ISO 8601 in UTC.
        until: time of the last one.
    """

    challenger: str
    champion: str
    requests: int
    value: float
    low: float
    high: float
    since: str
    until: str

    @classmethod
    def from_shares(
        cls,
        challenger: str,
        champion: str,
        shares: Sequence[float],
        requests: Sequence[int],
        times: tuple[datetime, datetime],
    ) -> Agreement:
        """Mean agreement with its 95% interval, from the share of equally ranked rows per request.

        Args:
            challenger: fingerprint of its weights.
            champion: likewise.
            shares: of the rows of each request, from 0 to 1.
            requests: equal numbers stand for equal requests, which are one cluster.
            times: of the first and the last one.
        """
        _, numbers = np.unique(np.array(requests), return_inverse=True)
        measured = level([Part(100 * np.array([shares]), numbers)], [1.0])
        low, high = measured.interval
        since, until = (time.isoformat(timespec="seconds") for time in times)
        return cls(challenger, champion, measured.images, measured.value, low, high, since, until)


def write_agreement(version: ModelVersion, agreement: Agreement, signing: SigningSettings) -> None:
    """Store the agreement of two models on requests as an MLflow artefact; replaces an earlier one.

    Raises:
        SettingsError: the private key cannot be used.
        PlainError: the version has no run that could hold it.
    """
    if not version.run_id:
        raise PlainError(f"{version.name} version {version.version} was registered without a run")
    with tempfile.TemporaryDirectory() as folder:
        write_json(Path(folder) / _FILE, asdict(agreement))
        if signing.public_key is not None:
            signing_keys.sign(Path(folder), signing)
        place = _artifact_path(agreement.challenger, agreement.champion)
        mlflow.MlflowClient().log_artifacts(version.run_id, folder, place)


def read_agreement(
    version: ModelVersion, challenger: str, champion: str, signing: SigningSettings
) -> Agreement | None:
    """Read the stored agreement of challenger and champion on requests; None if none is stored.

    Args:
        version: of the registry.
        challenger: fingerprint of the version's weights.
        champion: of the champion's.
        signing: the configured keys.

    Raises:
        ValueError: it cannot be read, is of other models, or was not signed by the key.
        SettingsError: the public key cannot be used.
    """
    place = _artifact_path(challenger, champion)
    client = mlflow.MlflowClient()
    run = version.run_id
    if not run or place not in {each.path for each in client.list_artifacts(run, _FOLDER)}:
        return None
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(client.download_artifacts(run, place, temporary))
        if signing.public_key is not None:
            signing_keys.check(folder, signing.public_key)
        found = parse(Agreement, read_json(folder / _FILE), f"{place}/{_FILE}")
    if (found.challenger, found.champion) != (challenger, champion):
        raise ValueError(f"{place}/{_FILE} is of other models than its folder says")
    numbers = found.low, found.value, found.high
    if not all(math.isfinite(each) and 0 <= each <= 100 for each in numbers):
        raise ValueError(f"{place}/{_FILE}: a share is not from 0 to 100")
    return found


def _artifact_path(challenger: str, champion: str) -> str:
    """MLflow artifact path of the agreement of two models, made from their fingerprints."""
    return f"{_FOLDER}/{challenger[:_DIGITS]}-{champion[:_DIGITS]}"
