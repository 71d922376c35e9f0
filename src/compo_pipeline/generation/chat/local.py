"""Models in local folders, loaded by transformers: safetensors alone, and no code of the folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from compo_pipeline.core.hashing import folder_hash
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.core.tables import grouped
from compo_pipeline.generation.chat.settings import LocalSettings
from compo_pipeline.models import foreign

if TYPE_CHECKING:
    from torch import Tensor

Question = TypeVar("Question")
Result = TypeVar("Result")


def check_folder(folder: Path, key: str, what: str) -> None:
    """Check that a folder holds a transformers model that runs no code from the folder.

    Args:
        folder: of the model.
        key: the YAML key of its settings.
        what: the model that is expected, such as "a causal language model".

    Raises:
        SettingsError: it does not, or does; names the key.
    """
    if not (folder / "config.json").is_file():
        raise SettingsError(
            f"{key}.folder: expected a folder with config.json, weights and tokenizer of {what}, "
            f"got '{folder}'"
        )
    foreign.refuse_code(folder, f"{key}.folder")


class LocalModel:
    """A model in a local folder that answers greedily, loaded from its first answer to its last.

    Args:
        settings: parsed.
        key: their YAML key.
        what: the model that is expected, for errors.
        model_class: an Auto class of transformers.
        reader_class: AutoTokenizer or AutoProcessor.
    """

    def __init__(
        self, settings: LocalSettings, key: str, what: str, model_class: str, reader_class: str
    ) -> None:
        self._settings, self._key, self._what = settings, key, what
        self._classes = model_class, reader_class

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the files in the model's folder."""
        folder = Path(self._settings.folder)
        check_folder(folder, self._key, self._what)
        return folder_hash(folder)

    @cached_property
    def loaded(self) -> tuple[Any, Any]:
        """The model, on a GPU where there is one, and its tokenizer or processor.

        Raises:
            SettingsError: transformers is not installed, or the folder holds no such model.
        """
        import torch
        from safetensors import SafetensorError

        try:
            import transformers
        except ImportError as error:
            raise SettingsError(
                f"{self._key}: a local model needs transformers, which is not installed "
                "(pip install transformers)"
            ) from error
        model_class, reader_class = (getattr(transformers, name) for name in self._classes)
        folder, dtype = self._settings.folder, self._settings.dtype
        safe = {"local_files_only": True, "trust_remote_code": False}
        try:
            reader = reader_class.from_pretrained(folder, **safe)
            network = model_class.from_pretrained(folder, use_safetensors=True, dtype=dtype, **safe)
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise SettingsError(
                f"{self._key}.folder: cannot load {self._what} from {folder!r} ({error})"
            ) from error
        tokenizer = getattr(reader, "tokenizer", reader)
        # Generation continues at the end of each row.
        tokenizer.padding_side = "left"
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        return network.to("cuda" if torch.cuda.is_available() else "cpu").eval(), reader

    def in_batches(
        self, questions: Sequence[Question], answer: Callable[[list[Question]], Iterable[Result]]
    ) -> Iterator[Result]:
        """Yield the results of questions, batch by batch; free the model's memory after the last.

        An image generator may need the memory. The next use loads the model again.
        """
        try:
            for some in grouped(questions, self._settings.batch_size):
                yield from answer(some)
        finally:
            self.__dict__.pop("loaded", None)

    def generate(self, rows: Any, **more: Any) -> Tensor:
        """Token ids that the model writes for rows of inputs."""
        import torch

        network, _ = self.loaded
        with torch.inference_mode():
            written: Tensor = network.generate(
                **rows,
                max_new_tokens=self._settings.max_tokens,
                do_sample=False,
                num_beams=1,
                temperature=None,
                top_p=None,
                top_k=None,
                **more,
            )
        return written


def is_cut(tokens: list[int], most: int, ends: int | list[int] | None) -> bool:
    """Whether an answer was cut off: its tokens reach the limit without an end token.

    Args:
        tokens: of one answer.
        most: the limit.
        ends: the model's tokens that end a text.
    """
    found = {ends} if isinstance(ends, int) else set(ends or ())
    return len(tokens) == most and found.isdisjoint(tokens)
