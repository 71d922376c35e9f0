"""Caption editor behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from compo_pipeline.chat.endpoint import Ask, Endpoint, NoAnswer, request_body
from compo_pipeline.chat.requests import Pause
from compo_pipeline.counterfactuals.contract import (
    EditedCaption,
    EditFailure,
    EditRequest,
    Opening,
)
from compo_pipeline.counterfactuals.editors.llm import (
    PROMPTS,
    attempt_seed,
    check_answer,
    edit_messages,
)
from compo_pipeline.counterfactuals.settings import EditorEndpointSettings
from compo_pipeline.storage.hashing import hash_of


class EndpointEditor:
    """Caption editor that asks a language model on a server, and stores each answer.

    An answer is stored before it is checked.
    """

    name: ClassVar[str] = "endpoint"
    concurrent: ClassVar[bool] = False

    def __init__(
        self,
        settings: EditorEndpointSettings,
        *,
        key: str,
        seed: int,
        cache: Path,
        pause: Pause = threading.Event.wait,
    ) -> None:
        """An editor that opens nothing yet; the arguments are those of `Endpoint`."""
        self._settings, self._seed = settings, seed
        self._endpoint = Endpoint(settings, key=key, seed=seed, cache=cache, pause=pause)

    @property
    def settings_fingerprint(self) -> str:
        """Hash of all settings that change the texts, without server address and retries."""
        own = self._settings
        parameters = (own.model, own.temperature, own.max_tokens, own.seeded, dict(own.more))
        return hash_of(self.name, parameters, own.attempts, self._seed, PROMPTS)

    def edit(self, requests: Sequence[EditRequest]) -> Iterator[EditedCaption | EditFailure]:
        """Yield an edited caption or a failure for each request, in the requests' order.

        Raises:
            SettingsError: as of `Endpoint.each`.
        """
        for result in self._endpoint.each(self._edit_one, requests):
            yield EditFailure(*result) if isinstance(result, NoAnswer) else result

    def _edit_one(self, ask: Ask, request: EditRequest) -> EditedCaption | EditFailure:
        """Edit one caption: ask the model until an answer passes the checks."""
        own = self._settings
        for attempt in range(own.attempts):
            messages = edit_messages(request.caption, request.role)
            body = request_body(own, messages, attempt_seed(self._seed, request, attempt))
            answer = ask(hash_of({"attempt": attempt, **body}), partial(dict, body))
            result = check_answer(request, answer, attempt)
            if isinstance(result, EditedCaption):
                break
        return result


def open_editor(settings: EditorEndpointSettings, key: str, opening: Opening) -> EndpointEditor:
    """Create the caption editor `endpoint` from its settings."""
    cache = opening.state / "endpoint.sqlite"
    return EndpointEditor(settings, key=key, seed=opening.seed, cache=cache)
