"""Models of the `diffusion` maker: folders of one's own, or repositories of the hub."""

from __future__ import annotations

import re
from pathlib import Path

from compo_pipeline.configuration import SettingsError
from compo_pipeline.counterfactuals.generators.diffusion import local_folder
from compo_pipeline.counterfactuals.generators.loading import HUB_FILES, lacking
from compo_pipeline.models import hub

_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w.-]+")


def locate(name: str, key: str) -> Path:
    """The folder of a model; where there is none of that name, the hub's, fetched once.

    Args:
        name: a folder, or `owner/model`.
        key: the YAML key that names it.

    Raises:
        SettingsError: it is no folder, and no download.
    """
    if Path(name).expanduser().is_dir() or not _REPOSITORY.fullmatch(name):
        return local_folder(name, key)
    from huggingface_hub import snapshot_download

    try:
        found = hub.cached(name, HUB_FILES)
        if found is None or lacking(found):  # as an interrupted download leaves it
            hub.ask(name)
            found = Path(snapshot_download(name, allow_patterns=list(HUB_FILES)))
    except Exception as error:
        raise SettingsError(
            f"{key}: there is no folder '{name}', and the model of that name could not be "
            f"downloaded ({type(error).__name__}: {hub.first_line(error)}). Without a network, "
            f"fetch its folder elsewhere and name that"
        ) from error
    return found
