"""From facts to quarantine, a result by rule, and Data Docs."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compo_pipeline.presentation import data_docs
from compo_pipeline.quality import quarantine, suite
from compo_pipeline.quality.settings import ValidationSettings
from compo_pipeline.records import Fact, Rejected, to_table

_log = logging.getLogger(__name__)


def validate(
    facts: Sequence[Fact],
    unparseable: Sequence[Rejected],
    settings: ValidationSettings,
    docs: Path,
) -> tuple[list[Rejected], dict[str, Any], Path]:
    """Hold the rows against the rules.

    Args:
        facts: one per caption row, in order.
        unparseable: records that never became rows; they go to quarantine as they are.
        settings: the rules.
        docs: folder for the Data Docs; an older site there is replaced.

    Returns:
        Quarantine, the summary by rule, and the folder of the Data Docs.
    """
    frame = to_table(facts, Fact).to_pandas()
    unfinished = docs.with_name(f"{docs.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    broken = suite.check(frame, settings.rules, unfinished)
    entries = [*unparseable, *quarantine.quarantined(frame, broken, settings.rules)]
    result = quarantine.summary(len(facts), entries, broken, settings)
    data_docs.make_local(unfinished, result, frame)
    data_docs.replace(docs, unfinished)
    _log.info("%d of %d records are bad; %s", result["bad"], result["records"], docs / "index.html")
    return entries, result, docs
