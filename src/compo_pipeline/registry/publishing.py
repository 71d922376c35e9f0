"""Publishing a registered version as a model repository of the Hugging Face hub.

The repository holds the open_clip folder with its model card and, where transformers has such a
model, the files of transformers and sentence-transformers. A version's evidence stays here: it has
embeddings and words of the training data's captions.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import tempfile
from dataclasses import replace
from glob import escape
from pathlib import Path
from textwrap import shorten

from huggingface_hub import HfApi, ModelCard, constants, get_token
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.untrusted import listed
from compo_pipeline.models.hf_export import to_hugging_face
from compo_pipeline.models.hub import reason
from compo_pipeline.models.loading import LoadedModel, write
from compo_pipeline.models.settings import REGISTRY_PREFIX
from compo_pipeline.models.weights import RECORD_FILE, read_record
from compo_pipeline.registry import versions
from compo_pipeline.registry.evidence import EVIDENCE_FOLDER
from compo_pipeline.registry.registration import CARD
from compo_pipeline.registry.settings import RegistrationSettings
from compo_pipeline.registry.verification import load_checked, verified

# Files of transformers and sentence-transformers that a version may lack.
_PUSHED = re.compile(
    r"(config|model|modules|(pre)?processor|sentence_bert|special_tokens|tokenizer|vocab)[^/]*"
    r"\.(json|safetensors)"
)
_WEIGHTS = (".safetensors", ".bin")
_HERE = "local-dir:<this folder>"
# A folder's path, but for its last part: an absolute one, or any in a model's name.
_FOLDERS = re.compile(r"""(?:local-dir:|(?<=[ "'])/(?=\w))(?:[^"|\n(]*/)?(?=[^\s"|/])""")
_ALSO = ("transformers", "sentence-transformers")

log = logging.getLogger(__name__)


def push(
    version: str, repository: str, settings: RegistrationSettings, *, public: bool
) -> tuple[str, bool]:
    """Upload a version, once its files are verified, in one commit.

    Weights and JSON files of transformers that an earlier push left in the repository are deleted.
    Files name folders of this machine without their paths.

    Args:
        version: number or alias of a version, or `models:/<name>/<version>`.
        repository: `owner/name`; it is created if it is missing.
        settings: name of the registered model, and the public key.
        public: whether everyone may read a repository that is created.

    Returns:
        The repository's address, and whether it is private.

    Raises:
        SettingsError: there is no such version, no token or no network, the hub refuses, or the
            repository is public and `public` does not say so.
        VersionError: the version's files are not those that were registered.
    """
    if constants.HF_HUB_OFFLINE:
        raise SettingsError("push: HF_HUB_OFFLINE forbids the network; set HF_HUB_OFFLINE=0")
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise SettingsError(f"push: {reason(error)}") from None
    if "/" not in repository:
        raise SettingsError(f"push: '{repository}' has no owner, expected <owner>/{repository}")
    if (token := get_token()) is None:
        raise SettingsError("push: no token of the hub: run `hf auth login`, or set HF_TOKEN")
    number = int(version) if version.isdecimal() else None
    found = (
        versions.version_of(version, "push")
        if version.startswith(REGISTRY_PREFIX)
        else versions.find(settings.name, version, number, "push")
    )
    api = HfApi(token=token)
    with tempfile.TemporaryDirectory() as temporary:
        files = verified(found, Path(temporary) / "version", settings.signing)
        _make_public(files.export, repository, files.load())
        _add_transformers(files.export, repository, str(files.lineage.fingerprint))
        try:
            url = str(api.create_repo(repository, private=not public, exist_ok=True))
            info = api.model_info(repository)
            private = bool(info.private)
            if private or public:
                there = {each.rfilename for each in info.siblings or ()}
                others = there - {each.name for each in files.export.iterdir()}
                old = {*filter(_PUSHED.fullmatch, others)} if RECORD_FILE in there else set()
                api.upload_folder(
                    repo_id=repository,
                    folder_path=files.export,
                    ignore_patterns=[f"{EVIDENCE_FOLDER}/*"],
                    delete_patterns=[*map(escape, old)],
                    commit_message=f"{found.name} version {found.version}",
                )
                stay = sorted(each for each in others - old if each.endswith(_WEIGHTS))
                if stay:
                    log.warning("%s: other weights stay there: %s", repository, listed(stay))
                return url, private
        except Exception as error:
            why = reason(error)
            if why.startswith("ValueError: "):  # of the card; the faults are further lines
                why = shorten(str(error), 400)
            raise SettingsError(f"push: {repository}: {why}") from error
    raise SettingsError(f"push: {repository} is public already: add --public, or name another one")


def _make_public(export: Path, repository: str, loaded: LoadedModel) -> None:
    """Name the repository in the card, and no path of this machine in card, record and weights."""
    record = read_record(export)
    public = json.loads(_FOLDERS.sub("", json.dumps(record)))
    if public != record:
        model = replace(loaded, name=public["name"])
        write(model, export, precision=public["precision"], metadata=public)
    card = (export / CARD).read_text(encoding="utf-8").replace(_HERE, f"hf-hub:{repository}")
    (export / CARD).write_text(_FOLDERS.sub("", card), encoding="utf-8")


def _add_transformers(export: Path, repository: str, fingerprint: str) -> None:
    """Add the files of transformers, if there are any, to an exported folder and to its card.

    A tokenizer of transformers takes the place of the same files of open_clip, which must load it.
    """
    card = ModelCard.load(export / CARD)
    try:
        with tempfile.TemporaryDirectory() as temporary:
            folder = to_hugging_face(export, Path(temporary) / "transformers")
            (folder / RECORD_FILE).unlink()
            shutil.copytree(folder, export, dirs_exist_ok=True)
        load_checked(export, fingerprint)
        card.data.tags = [*(card.data.tags or ()), *_ALSO]
        also = f'sentence-transformers loads it too: `SentenceTransformer("{repository}")`.'
        card.text = card.text.replace("\n## Results\n", f"\n{also}\n\n## Results\n", 1)
    except SettingsError as error:
        log.warning("Without the files of transformers: %s", error.message)
    card.save(export / CARD)
