"""Folders on object storage are read like local ones, through a cache; outages are one line."""

import json
import os
import random
import signal
import stat
import tarfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image
from torch.utils.data import DataLoader

from compo_pipeline.core import remote
from compo_pipeline.core.files import size_and_time
from compo_pipeline.core.remote import RemoteError, RemoteSettings, configure, refresh_all
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.data import readers
from compo_pipeline.data.images import decoding
from compo_pipeline.data.images.decoding import ImageError, Limits
from compo_pipeline.data.readers.record import RawCaption
from compo_pipeline.data.settings import DataSettings

Bucket = Any


@pytest.fixture
def mirrored(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Puts objects into a bucket and lists them; returns the folder that mirrors it."""

    def make(objects: dict[str, bytes], limit: int = 10**6) -> Path:
        monkeypatch.setenv("COMPO_PIPELINE_CACHE_BYTES", str(limit))
        folder = remote.mirror(f"s3://{bucket.name}/set", tmp_path / "cache")
        bucket.put({f"set/{name}": content for name, content in objects.items()})
        remote.refresh(folder)
        return folder

    return make


def held(folder: Path) -> list[bytes]:
    """The contents in the cache; what is listed alone has no mode."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path.read_bytes() for path in files if stat.S_IMODE(path.stat().st_mode))


def test_what_is_in_the_cache_is_downloaded_again_only_after_a_change(
    mirrored: Callable[..., Path], bucket: Bucket
) -> None:
    folder = mirrored({"a": b"one", "b": b"two", "gone/c": b"3"})
    stamps = [size_and_time(folder / name) for name in "ab"]
    assert [size for size, _ in stamps] == [3, 3] and held(folder) == []
    # What opens it as a local file gets no zeros.
    assert stat.S_IMODE((folder / "a").stat().st_mode) == 0
    assert [remote.read_bytes(folder / name) for name in "ab"] == [b"one", b"two"]
    bucket.put({"set/a": b"new"})  # of the same size
    bucket.remove("set/gone/c")
    with pytest.raises(FileNotFoundError, match="set/gone/c"):
        remote.read_bytes(folder / "gone" / "c")
    remote.refresh(folder)
    assert not (folder / "gone").exists()
    assert remote.read_bytes(folder / "a") == b"new"
    # By these, ingest measures a changed image again.
    assert size_and_time(folder / "b") == stamps[1]
    assert size_and_time(folder / "a") != stamps[0]
    bucket.remove("set/b")
    assert remote.read_bytes(folder / "b") == b"two"


def test_the_cache_holds_the_files_that_were_used_last(mirrored: Callable[..., Path]) -> None:
    folder = mirrored({name: name.encode() * 300 for name in "abcde"}, limit=1000)
    for name in "abcaca":
        assert remote.read_bytes(folder / name) == name.encode() * 300
        time.sleep(0.01)  # the system's clock is coarse
    with remote.open_file(folder / "a") as file:
        time.sleep(0.01)
        for name in "cd":
            remote.read_bytes(folder / name)
            time.sleep(0.01)
        assert held(folder) == [b"a" * 300, b"c" * 300, b"d" * 300]
        for name in "eb":
            remote.read_bytes(folder / name)
        assert held(folder) == [b"b" * 300, b"d" * 300, b"e" * 300]
        assert file.read() == b"a" * 300


def in_processes(action: Callable[..., None], *arguments: Iterable[Any]) -> list[int | None]:
    """Calls a function in a process for each of its arguments, at once; returns how they ended."""
    fork = get_context("fork")
    processes = [fork.Process(target=action, args=each) for each in zip(*arguments, strict=True)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def test_a_download_that_is_killed_is_no_content(
    mirrored: Callable[..., Path], bucket: Bucket
) -> None:
    content = random.Random(0).randbytes(100_000)
    folder = mirrored({"a": content})

    def read_and_die(path: Path) -> None:
        with remote.filesystem(f"s3://{bucket.name}/set") as (files, _):
            get_file = files.get_file

        def get_half(key: str, local: str) -> None:
            get_file(key, local)
            os.truncate(local, len(content) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

        files.get_file = get_half
        remote.read_bytes(path)

    assert in_processes(read_and_die, [folder / "a"]) == [-signal.SIGKILL]
    assert held(folder) == []
    assert remote.read_bytes(folder / "a") == content


def test_processes_share_a_cache_that_is_too_small_for_all(mirrored: Callable[..., Path]) -> None:
    content = {str(n): random.Random(n).randbytes(3000) for n in range(8)}
    limit, count = 12_000, 4
    folder = mirrored(content, limit)

    def read_all(seed: int) -> None:
        for _ in range(5):
            if not seed:
                remote.refresh(folder)
            for name in random.Random(seed).sample(sorted(content), len(content)):
                assert remote.read_bytes(folder / name) == content[name]

    assert in_processes(read_all, range(count)) == [0] * count
    assert len(held(folder)) * 3000 <= limit + (count - 1) * 3000


def test_an_object_that_changed_or_vanished_after_the_listing_is_not_read(
    mirrored: Callable[..., Path], bucket: Bucket
) -> None:
    folder = mirrored({"a": b"one", "b": b"two", "c": b"three"})
    bucket.put({"set/a": b"eno", "set/c": b"longer"})
    bucket.remove("set/b")
    for name in "ac":
        with pytest.raises(RemoteError, match=rf"set/{name}: .*changed.*run again"):
            remote.read_bytes(folder / name)
    assert held(folder) == []
    # A lost image is a reason for quarantine.
    assert str(decoding.inspect(folder, "b", Limits()).error).startswith("missing")


def test_keys_that_no_file_can_have_are_left_out_aloud(
    mirrored: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = mirrored(dict.fromkeys(("a", "a/b", "x/../../../up", "long" * 80, "/absolute"), b"1"))
    assert [path.relative_to(folder) for path in folder.rglob("?")] == [Path("a"), Path("a/b")]
    assert not (folder.parents[2] / "up").exists()
    assert "4 objects" in caplog.text
    with pytest.raises(ImageError, match="out_of_root"):
        decoding.load(folder, "../other/x.jpg", Limits())


def test_loader_processes_read_with_what_this_process_was_configured(
    mirrored: Callable[..., Path], bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = mirrored({"a": b"one", "b": b"two"})
    names = {"key": "ACCESS_KEY_ID", "secret": "SECRET_ACCESS_KEY", "endpoint_url": "ENDPOINT_URL"}
    credentials = {option: os.environ[f"AWS_{name}"] for option, name in names.items()}
    for name in names.values():
        monkeypatch.delenv(f"AWS_{name}")
    parameters = {"data": {"root": f"s3://{bucket.name}/set"}}
    configure(parameters, RemoteSettings(folder), {"s3": credentials})
    assert remote.read_bytes(folder / "a") == b"one"
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(remote.read_bytes, folder / "b").result() == b"two"


def test_an_error_of_a_loader_process_is_one_line() -> None:
    with pytest.raises(RemoteError) as caught:
        list(DataLoader([0], num_workers=1, collate_fn=fail))
    assert caught.value.message == "s3://bucket/x: no answer"


def fail(_: Any) -> None:
    raise RemoteError("s3://bucket/x: no answer")


def write_sources(root: Path) -> None:
    """Two images with captions in every form that is read in parts of its own."""
    names = ["coco/0.jpg", "coco/1.jpg"]
    (root / "annotations").mkdir(parents=True)
    (root / "coco").mkdir()
    for number, name in enumerate(names):
        Image.new("RGB", (20, 10), (9, 99 * number, 0)).save(root / name)
    captions = {
        "images": [{"id": number, "file_name": f"{number}.jpg"} for number in range(2)],
        "annotations": [{"id": n, "image_id": n, "caption": f"Dog {n}."} for n in range(2)],
    }
    (root / "annotations" / "captions_coco.json").write_text(json.dumps(captions))
    table = pd.DataFrame({"image": names, "caption": ["A dog.", "A cat."]})
    table.to_csv(root / "t.csv", index=False)
    table.to_parquet(root / "t.parquet")
    table.to_json(root / "t.jsonl", orient="records", lines=True)
    with tarfile.open(root / "t.tar", "w") as shard:
        for name in names:
            (root / "a.txt").write_text(f"A dog of {name}.")
            shard.add(root / name, name)
            shard.add(root / "a.txt", name.replace("jpg", "txt"))


def test_readers_and_images(mirrored: Callable[..., Path], tmp_path: Path) -> None:
    local = tmp_path / "local"
    write_sources(local)
    files = (path for path in local.rglob("*") if path.is_file())
    folder = mirrored({path.relative_to(local).as_posix(): path.read_bytes() for path in files})
    both = []
    for root in (local, folder):
        for kind, source in (
            ("table", "*.csv"),
            ("table", "*.jsonl"),
            ("table", "*.parquet"),
            ("coco_captions", "coco"),
            ("webdataset", "*.tar"),
        ):
            data = DataSettings(root, kind, {"train": source})
            records = list(readers.read(data))
            assert len(records) == 2 and all(isinstance(each, RawCaption) for each in records)
            found = readers.locate(data)["splits"]
            pixels = [
                decoding.load(root, each.image, Limits()).tobytes()
                for each in records
                if isinstance(each, RawCaption)
            ]
            both.append((records, found, pixels))
    assert both[:5] == both[5:]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://no-such-bucket/x", "there is no such object or bucket: .*no-such-bucket/x"),
        ("s3://{bucket}/empty", "there is no object below this URL: .*empty"),
        ("unknown://a/b", "Protocol not known"),
    ],
)
def test_what_is_not_there_is_named_with_its_key(
    bucket: Bucket, tmp_path: Path, url: str, reason: str
) -> None:
    data = {"root": url.format(bucket=bucket.name), "views": {"images": 2}}
    parameters = {"data": data, "remote": {}}
    configured = configure(parameters, RemoteSettings(tmp_path), {})
    with pytest.raises(SettingsError, match=rf"^data\.root: .*{reason}") as caught:
        refresh_all(configured, {"data"})
    assert "\n" not in caught.value.message
    refresh_all(configured, {"benchmarks"})  # nothing of it is read


def test_storage_that_does_not_answer_or_refuses_is_an_error_soon(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = {"data": {"root": f"s3://{bucket.name}/x"}, "remote": {}}
    nobody = {"endpoint_url": "http://127.0.0.1:1", "key": "me", "secret": "hunter2"}
    configured = configure(parameters, RemoteSettings(tmp_path), {"s3": nobody})
    with pytest.raises(SettingsError, match=r"^data\.root: s3://.*127\.0\.0\.1:1") as caught:
        refresh_all(configured, {"data.root"})
    assert "hunter2" not in caught.value.message
    assert "hunter2" in os.environ["FSSPEC_S3"]  # processes of data loaders need it
    # An outage is no reason for quarantine.
    path = Path(configured["data"]["root"]) / "image.jpg"
    path.parent.mkdir(parents=True)
    path.touch(mode=0o000)
    with pytest.raises(RemoteError):
        decoding.inspect(path.parent, "image.jpg", Limits())


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"data": {"root": "s3://me:hunter2@bucket/x"}}, r"data\.root: .*\*\*\*@bucket.*creden"),
        ({"data": {"root": "s3://b/x?api_key=hunter2"}}, r"data\.root: .*api_key=\*\*\*.*creden"),
        ({"data": {"root": "s3://me:hun/ter2@bucket/x"}}, r"data\.root: .*\*\*\*@bucket.*creden"),
        ({"data": {"root": "s3://b/../x"}}, r"data\.root: expected a URL without"),
    ],
)
def test_urls_that_cannot_be_used(values: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=told) as caught:
        configure(values, RemoteSettings(tmp_path), {})
    assert "ter2" not in str(caught.value)


def test_local_paths_are_as_they_are(tmp_path: Path) -> None:
    parameters = {"data": {"root": "data/01_raw", "images": ""}, "tracking": {"uri": "http://x/y"}}
    assert configure(parameters, RemoteSettings(tmp_path), {}) == parameters
    assert remote.cache_and_url(tmp_path / "a" / "b.jpg") is None
