"""Fixtures shared by all tests.

A fast test takes about a tenth of a second of processor time, at most three; what takes longer is
`slow`. A process that imports Kedro takes two seconds, a session half a second (`context` shares
what it reads), a training on the tiny model half a second: run each once and check all of it.
"""

import gc
import json
import logging
import multiprocessing
import os
import random
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir
from functools import cache, cached_property
from itertools import count
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from pydantic_core import to_jsonable_python
from tests import outlines, vision_models
from tests.chat_server import Chat

from compo_pipeline.core import compute
from compo_pipeline.core.records import Parse

# Test processes, and what they start, share the cores; before torch is imported. A worker of xdist
# inherits what its controller has set here, so that `setdefault` would leave it all cores.
_PROCESSES = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
os.environ["OMP_NUM_THREADS"] = str(max(1, compute.cores() // _PROCESSES))

# The first example of a test may import half a library: no deadline. The same examples each time.
settings.register_profile("project", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("project")

PROJECT = Path(__file__).resolve().parents[1]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import the test modules without garbage collection, and keep it off what they import.

    That is a million objects which stay to the end: a fifth of the collection's time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    """Let the last collection have all objects: libraries in C++ report the others as leaked."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Begin each test without the projects that Kedro has put before others for programs."""
    os.environ["PYTHONPATH"] = str(PROJECT / "src")


@pytest.fixture
def install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str, str, str], None]:
    """Installs a package of one module for a test: its name, text, and group and entry point."""

    def installed(name: str, text: str, group: str, point: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        metadata = tmp_path / f"{name}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[{group}]\n{point}\n")
        monkeypatch.syspath_prepend(tmp_path)

    return installed


_KINDS = ("NOUN/NN", "NOUN/NNS", "ADJ", "ADJ", "ADV", "VERB", "VERB", "AUX", "PROPN", "DET")
_TRICKY = (
    *("a", "A", "-", "...", "cat", "Cat", "cat's", "don't", "can't", "red-haired", '"Stop"', "I"),
    *("TV", "$5", "5pm", "o’clock", "straße", "STRASSE", "İstanbul", "ﬁsh", "ΟΔΟΣ", "🐈"),
    *("👩\u200d🚀", "50%", "dogs'", "(red)", "…"),
)
_PIECES = st.one_of(st.sampled_from(_TRICKY), st.text(min_size=1, max_size=8))


@pytest.fixture
def approved() -> Callable[[str, str], None]:
    """Compares the outline of a page with the approved one of a name."""
    return outlines.check


@pytest.fixture(scope="session")
def project() -> Path:
    """The project's root folder."""
    return PROJECT


@pytest.fixture(scope="session")
def shared() -> Path:
    """Development data beside the checkout: real COCO images, benchmark files, a treebank.

    The project works without it; tests that want it are skipped, visibly.
    """
    folder = PROJECT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("development data (../shared/data) is not on this machine")
    return folder


@pytest.fixture
def count_case(record_property: Callable[[str, object], None]) -> Iterator[Callable[[], int]]:
    """Counts the cases of a fuzz test, for benchmarks/faults/reliability.py."""
    cases = count()
    yield cases.__next__
    record_property("cases", next(cases))


class Configured:
    """What a session of the project reads from conf/: parameters, and the catalog when asked."""

    def __init__(self, loaded: Any) -> None:
        self._loaded = loaded
        self.settings: Any = loaded.settings
        self.objects: dict[str, Any] = loaded.params
        self.params: dict[str, Any] = to_jsonable_python(self.objects)

    @cached_property
    def catalog(self) -> Any:
        # `${globals:...}` is resolved by the environment that any session has loaded last.
        self._loaded.config_loader._register_globals_resolver()
        with chdir(PROJECT):
            return self._loaded.catalog


@pytest.fixture(scope="session")
def bootstrapped() -> Path:
    """The project's root folder, once Kedro knows its package.

    Once for all tests: under pytest, Kedro's inspection of the stack takes half a second.
    """
    from kedro.framework.startup import bootstrap_project

    bootstrap_project(PROJECT)
    return PROJECT


@pytest.fixture(scope="session")
def context(bootstrapped: Path) -> Callable[..., Configured]:
    """Parameters and catalog of the project by environment and `--params`; change nothing in them.

    Each is read once for all tests: reading all of conf/ takes half a second.
    """
    from kedro.framework.session import KedroSession

    @cache
    def load(env: str, runtime: str) -> Configured:
        params = json.loads(runtime)
        with (
            chdir(PROJECT),
            KedroSession.create(PROJECT, env=env, runtime_params=params) as session,
        ):
            return Configured(session.load_context())

    return lambda env="base", **runtime: load(env, json.dumps(runtime, sort_keys=True))


TINY: dict[str, Any] = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 16, "head_width": 8, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


@pytest.fixture(scope="session")
def compo_en() -> Any:
    """The shipped pipeline; tests must not add or remove components."""
    from compo_pipeline.language.parsing import load

    return load("compo_en")


@pytest.fixture(scope="session")
def tagged() -> Callable[[str], Parse]:
    """A parse of space-separated `word/UPOS` or `word/UPOS/TAG`.

    A `_` before a word glues it to the one before; brackets of their own enclose noun phrases.
    """

    def make(source: str) -> Parse:
        words, offsets, upos, tags, phrases, text = [], [], [], [], [], ""
        for token in source.split():
            if token in "[]":
                phrases.append(len(words))
                continue
            word, *kind = token.split("/")
            text += "" if word.startswith("_") or not text else " "
            words.append(word.removeprefix("_"))
            offsets.append(len(text))
            text += words[-1]
            upos.append(kind[0])
            tags.append(kind[-1])
        columns = (tuple(column) for column in (words, offsets, upos, tags, phrases))
        return Parse("id", 0, text, *columns)

    return make


@cache
def _tokenizer() -> Any:
    import spacy

    return spacy.blank("en")


@st.composite
def _parses(draw: st.DrawFn) -> Parse:
    """Any text as spaCy parts it, tagged at random, with random noun phrases."""
    separator, ending = draw(st.sampled_from([(" ", "."), (" ", " "), ("", "")]))
    text = separator.join(draw(st.lists(_PIECES, min_size=1, max_size=8))) + ending
    doc = _tokenizer()(text)
    chance = random.Random(draw(st.integers(0, 999)))
    kinds = [(chance.choice((*_KINDS, "PUNCT", "X")) + "/").split("/") for _ in doc]
    upos = ["SPACE" if token.is_space else kind[0] for token, kind in zip(doc, kinds, strict=True)]
    ends = sorted(chance.sample(range(len(doc) + 1), 2 * min(2, (len(doc) + 1) // 2)))
    return Parse(
        sample_id="id",
        sentence=0,
        text=text,
        words=tuple(token.text for token in doc),
        offsets=tuple(token.idx for token in doc),
        upos=tuple(upos),
        tags=tuple(kind[1] for kind in kinds),
        noun_phrases=tuple(ends),
    )


@pytest.fixture(scope="session")
def parses() -> st.SearchStrategy[Parse]:
    """Parses of any text, sensible or not."""
    return _parses()


@pytest.fixture(scope="session")
def vision_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the folder of a tiny model of `vision_models`, by its kind."""
    return cache(lambda kind: vision_models.write(kind, tmp_path_factory.mktemp("vision") / kind))


@pytest.fixture(scope="session")
def tiny_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random CLIP that runs in milliseconds, as open_clip would write it."""
    import open_clip
    import torch
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("tiny_clip")
    preprocess = {"mean": [0.6, 0.5, 0.4], "std": [0.3, 0.2, 0.1], "resize_mode": "squash"}
    config = {"model_cfg": TINY, "preprocess_cfg": {"size": [32, 32], **preprocess}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = open_clip.CLIP(**TINY)
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a random CLIP of short texts; the towers differ by seed and by image_seed."""
    import torch
    from open_clip.model import CLIP
    from safetensors.torch import save_file

    config: dict[str, Any] = {**TINY, "text_cfg": {**TINY["text_cfg"], "context_length": 16}}

    def write(seed: int, image_seed: int = 0) -> Path:
        folder = tmp_path_factory.mktemp("model")
        torch.manual_seed(seed)
        state = CLIP(**config).state_dict()
        torch.manual_seed(image_seed)
        visual = {k: v for k, v in CLIP(**config).state_dict().items() if k.startswith("visual.")}
        tensors = {k: v.clone().contiguous() for k, v in {**state, **visual}.items()}
        header = {"format": "pt", "quick_gelu": "false"}
        save_file(tensors, folder / "open_clip_model.safetensors", metadata=header)
        written = {"model_cfg": config, "preprocess_cfg": {}}
        (folder / "open_clip_config.json").write_text(json.dumps(written))
        return folder

    return write


PIECES = ("▁", "▁a", "▁the", "▁red", "▁blue", "▁cube", "▁sphere", "▁left", "▁of")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


@pytest.fixture(scope="session")
def write_siglip_tokenizer() -> Callable[[Path, Sequence[str]], Path]:
    """Writes a small tokenizer built as SigLIP's is: T5's pieces, filled up with </s>."""
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    def write(folder: Path, words: Sequence[str]) -> Path:
        pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
        pieces += [(piece, -2.0) for piece in words] + [(letter, -9.0) for letter in LETTERS]
        inner = Tokenizer(models.Unigram(pieces, unk_id=2))
        space = {"replacement": "▁", "prepend_scheme": "always"}
        inner.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**space)]
        )
        inner.decoder = decoders.Metaspace(**space)
        ending = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
        inner.post_processor = ending
        inner.save(str(folder / "tokenizer.json"))
        roles = {"eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>"}
        config = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0, "additional_special_tokens": []}
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, **roles}))
        return folder

    return write


@pytest.fixture(scope="session")
def siglip_tokenizer(
    tmp_path_factory: pytest.TempPathFactory,
    write_siglip_tokenizer: Callable[[Path, Sequence[str]], Path],
) -> Path:
    """Folder of such a tokenizer."""
    return write_siglip_tokenizer(tmp_path_factory.mktemp("siglip_tokenizer"), PIECES)


@pytest.fixture(scope="session")
def tiny_siglip(tmp_path_factory: pytest.TempPathFactory, siglip_tokenizer: Path) -> Path:
    """Folder of open_clip's ViT-B-16-SigLIP, shrunk, with random weights and a small tokenizer."""
    import open_clip
    import torch
    from open_clip.model import CustomTextCLIP
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("tiny_siglip")
    config = open_clip.get_model_config("ViT-B-16-SigLIP")
    small = {"timm_model_name": "test_vit3", "image_size": 160}
    config |= {"embed_dim": 96, "vision_cfg": {**config["vision_cfg"], **small}}
    config["text_cfg"] |= {"vocab_size": 64, "width": 32, "heads": 2, "layers": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = CustomTextCLIP(**{k: v for k, v in config.items() if k != "custom_text"})
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    half = [0.5, 0.5, 0.5]
    preprocess = {"size": [160, 160], "mean": half, "std": half, "resize_mode": "squash"}
    written = {"model_cfg": config, "preprocess_cfg": preprocess}
    (folder / "open_clip_config.json").write_text(json.dumps(written))
    for path in siglip_tokenizer.iterdir():
        shutil.copy(path, folder)
    return folder


@pytest.fixture(scope="session")
def plant_code() -> Callable[[Path, str], Path]:
    """Adds Python code to a folder, and `auto_map` entries that name it to one of its files.

    Returns the file that the code would write.
    """

    def plant(folder: Path, file: str) -> Path:
        marker = folder / "ran"
        (folder / "own.py").write_text(f"open({str(marker)!r}, 'w')\nclass Own: ...\n")
        path = folder / file
        config = json.loads(path.read_text()) if path.is_file() else {"model_type": "own"}
        classes = dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForCausalLM"), "own.Own")
        config["auto_map"] = {**classes, "AutoTokenizer": ["own.Own", "own.Own"]}
        path.write_text(json.dumps(config))
        return marker

    return plant


class Bucket:
    """A bucket of a server that speaks S3."""

    def __init__(self, files: Any, name: str) -> None:
        self.files, self.name = files, name
        files.mkdir(name)

    def put(self, objects: Mapping[str, bytes]) -> None:
        self.files.pipe({f"{self.name}/{key}": content for key, content in objects.items()})

    def remove(self, key: str) -> None:
        self.files.rm_file(f"{self.name}/{key}")

    def content(self, folder: str) -> dict[str, bytes]:
        """The objects below a folder, by their names relative to it."""
        self.files.invalidate_cache()
        start = f"{self.name}/{folder}/"
        found = self.files.find(start)
        return {name.removeprefix(start): self.files.cat_file(name) for name in found}


@pytest.fixture(scope="session")
def object_storage() -> Iterator[Mapping[str, str]]:
    """Variables of the environment that lead to a server that speaks S3."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server.start()
    _, port = server.get_host_and_port()
    yield {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }
    server.stop()


@pytest.fixture
def bucket(
    object_storage: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Bucket:
    """An empty bucket, which this process reaches by its environment."""
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("s3fs")
    for name, value in object_storage.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FSSPEC_S3", "{}")
    monkeypatch.setattr(fsspec.config, "conf", dict(fsspec.config.conf))
    return Bucket(fsspec.filesystem("s3"), tmp_path.name.replace("_", "-").lower())


@pytest.fixture(scope="session")
def quick_databases() -> None:
    """SQLite of this process does not wait for the disk: a study or a version is many commits."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def connected(connection: Any, _: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", connected)


@pytest.fixture(scope="session")
def mlflow_project(
    tmp_path_factory: pytest.TempPathFactory, quick_databases: None
) -> Iterator[Path]:
    """A project folder with an MLflow store; one for all tests, its database takes seconds.

    The experiment is `compo`; what a test logs, later tests see.
    """
    import mlflow

    from compo_pipeline.registry import runs as tracking
    from compo_pipeline.registry.tracking_settings import TrackingSettings

    folder = tmp_path_factory.mktemp("project with a space")
    tracking.configure(TrackingSettings(), folder)
    yield folder
    mlflow.set_tracking_uri(None)


@pytest.fixture(scope="session")
def version_files(
    tiny_clip: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, str]]:
    """Writes a model as the folder of a version, with probes; returns the version's tags."""
    import mlflow

    from compo_pipeline.evaluation.settings import EvaluationSettings
    from compo_pipeline.models.loading import LoadedModel, export
    from compo_pipeline.models.weights import read_record
    from compo_pipeline.registry import registration, verification
    from compo_pipeline.registry.evidence import MODELS, Evidence, write_evidence
    from compo_pipeline.registry.reference import write_reference

    logged = tmp_path_factory.mktemp("logged") / "model"
    mlflow.pyfunc.save_model(
        logged,
        python_model=str(verification.SERVED_CODE),
        code_paths=[str(verification.DECODER)],
        artifacts={registration.ARTEFACT: str(tiny_clip)},
        pip_requirements=registration.requirements(tiny_clip),
    )

    def write(
        loaded: LoadedModel, folder: Path, overlaps: tuple[Any, ...] = (), **metadata: Any
    ) -> dict[str, str]:
        shutil.copytree(logged, folder, dirs_exist_ok=True)
        exported = folder / "artifacts" / tiny_clip.name
        export(loaded, exported, metadata=metadata)
        verification.write_probes(exported)
        fingerprint = str(read_record(exported)["fingerprint"])
        evidence = Evidence(fingerprint, "", scored=(), titles={}, overlaps=overlaps)
        write_evidence(exported, evidence, {role: [] for role in MODELS}, [])
        write_reference(exported, loaded, [], folder, 0, EvaluationSettings())
        return {"fingerprint": fingerprint}

    return write


@pytest.fixture(scope="session")
def sealed() -> Callable[..., Any]:
    """Completes a version whose source is a folder, as registration does; `forge` checks nothing.

    All digests, and the tags, are those of the folder as it is.
    """
    import mlflow

    from compo_pipeline.registry import lineage, registration
    from compo_pipeline.registry.settings import SigningSettings

    def seal(version: Any, keys: SigningSettings | None = None, *, forge: bool = False) -> Any:
        client, number = mlflow.MlflowClient(), str(version.version)
        files = Path(version.source)
        for name in (lineage.LINEAGE_FILE, lineage.SIGNATURE_FILE):
            (files / name).unlink(missing_ok=True)
        _, digest = lineage.file_digests(files)
        client.set_model_version_tag(version.name, number, lineage.FILES_TAG, digest)
        tagged = client.get_model_version(version.name, number)
        if forge:
            lineage.write_lineage(tagged, files, SigningSettings())
        else:
            for file in registration.sign(tagged, files, keys or SigningSettings()):
                assert file.is_file()
        return tagged

    return seal


@pytest.fixture(scope="session")
def imported() -> ForkServerContext:
    """Context of processes of their own, which need not import again what takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["compo_pipeline.methods", "compo_pipeline.tuning.trial"])
    return context


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """A port that nobody listens on."""

    def port() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    return port


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """URL of a fresh PostgreSQL server."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    pytest.importorskip("psycopg")
    if not programs or shutil.which("runuser") is None or os.geteuid() != 0:
        pytest.skip("a PostgreSQL server (Debian's postgresql) and root are not on this machine")
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    shutil.chown(folder, "postgres")
    own = ["runuser", "-u", "postgres", "--"]
    control = [*own, str(programs[-1].with_name("pg_ctl")), "-D", str(folder / "data"), "-w"]
    quiet: dict[str, Any] = {"check": True, "stdout": subprocess.DEVNULL, "cwd": "/"}
    subprocess.run([*own, str(programs[-1]), "-D", str(folder / "data"), "-A", "trust"], **quiet)
    serve = ["-o", f"-c listen_addresses= -k {folder}", "-l", str(folder / "log"), "start"]
    subprocess.run([*control, *serve], **quiet)
    yield f"postgresql+psycopg://postgres@/postgres?host={folder}"
    subprocess.run([*control, "-m", "immediate", "stop"], **quiet)
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def new_workspace(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Makes project folders with the same code and configuration, and data of their own."""

    def make() -> Path:
        folder = tmp_path_factory.mktemp("workspace")
        (folder / "src").mkdir()
        for path in (PROJECT / "pyproject.toml", PROJECT / "conf", *(PROJECT / "src").glob("*")):
            (folder / path.relative_to(PROJECT)).symlink_to(path)
        return folder

    return make


@pytest.fixture(scope="module")
def workspace(new_workspace: Callable[[], Path]) -> Path:
    """One of them."""
    return new_workspace()


@pytest.fixture(scope="session")
def tiny_diffusion(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a random text-to-image pipeline of a few thousand weights; prompts are 12 x 16."""
    diffusers = pytest.importorskip("diffusers")
    transformers = pytest.importorskip("transformers")
    import torch

    length, width = 12, 16
    layers = {"intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}

    def tokenizer(folder: Path) -> Any:
        """CLIP's own with letters for a vocabulary; it fills up with its end token."""
        letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
        pieces = [*letters, *(f"{letter}</w>" for letter in letters)]
        pieces += ["<|startoftext|>", "<|endoftext|>"]
        folder.mkdir(parents=True, exist_ok=True)
        vocabulary = {piece: number for number, piece in enumerate(pieces)}
        (folder / "vocab.json").write_text(json.dumps(vocabulary))
        (folder / "merges.txt").write_text("#version: 0.2\n")
        files = (str(folder / name) for name in ("vocab.json", "merges.txt"))
        return transformers.CLIPTokenizer(*files, model_max_length=length)

    def text(words: Any, kind: str = "CLIPTextModel") -> Any:
        ends = {"bos_token_id": words.bos_token_id, "eos_token_id": words.eos_token_id}
        sizes = {"vocab_size": len(words), "hidden_size": width, "max_position_embeddings": length}
        config = transformers.CLIPTextConfig(**sizes, **ends, **layers, projection_dim=width)
        return getattr(transformers, kind)(config)

    def vision(projection: int) -> Any:
        sizes = {"hidden_size": 16, "image_size": 32, "patch_size": 16}
        config = transformers.CLIPVisionConfig(**sizes, **layers, projection_dim=projection)
        return transformers.CLIPVisionModelWithProjection(config).eval()

    def unet(**more: Any) -> Any:
        return diffusers.UNet2DConditionModel(
            sample_size=8,
            block_out_channels=(8, 8),
            layers_per_block=1,
            norm_num_groups=4,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            attention_head_dim=4,
            **{"cross_attention_dim": width, **more},
        )

    def write(
        kind: str = "StableDiffusionPipeline",
        scheduler: str = "LCMScheduler",
        projection: int = width,
        **parts: Any,
    ) -> Path:
        folder = tmp_path_factory.mktemp("pipeline")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            words = tokenizer(folder / "words")
            given: dict[str, Any] = {
                "vae": diffusers.AutoencoderKL(
                    block_out_channels=(8, 8),
                    down_block_types=("DownEncoderBlock2D",) * 2,
                    up_block_types=("UpDecoderBlock2D",) * 2,
                    latent_channels=4,
                    norm_num_groups=4,
                ),
                "text_encoder": text(words),
                "tokenizer": words,
                "scheduler": getattr(diffusers, scheduler)(steps_offset=1),
                "image_encoder": vision(projection),
                "feature_extractor": transformers.CLIPImageProcessor(
                    size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
                ),
            }
            if kind == "StableDiffusionXLPipeline":
                numbers = {"addition_time_embed_dim": 4, "addition_embed_type": "text_time"}
                numbers |= {"projection_class_embeddings_input_dim": width + 6 * 4}
                given |= {
                    "unet": unet(cross_attention_dim=2 * width, **numbers),
                    "text_encoder_2": text(words, "CLIPTextModelWithProjection"),
                    "tokenizer_2": words,
                }
            else:
                latent = kind == "LatentConsistencyModelPipeline"
                given |= {
                    "unet": unet(time_cond_proj_dim=8 if latent else None),
                    "safety_checker": None,
                    "requires_safety_checker": False,
                }
            pipe = getattr(diffusers, kind)(**{**given, **parts})
        pipe.save_pretrained(folder, safe_serialization=True)
        return folder

    return write


@pytest.fixture
def chat() -> Iterator[Chat]:
    """A running chat server, told what to do by its `script`."""
    server = Chat()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.done.set()
    server.shutdown()
    server.server_close()
    thread.join()
