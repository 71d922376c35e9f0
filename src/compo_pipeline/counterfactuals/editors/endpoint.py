"""Caption editor behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from compo_pipeline.chat.answers import answer_key
from compo_pipeline.chat.endpoint import Ask, Endpoint, NoAnswer, request_body
from compo_pipeline.chat.requests import Pause
from compo_pipeline.counterfactuals.contract import (
    EditedCaption,
    EditFailure,
    EditRequest,
    Opening,
    short_fingerprint,
)
from compo_pipeline.counterfactuals.editors.llm import (
    attempt_seed,
    check_answer,
    edit_messages,
    prompts_fingerprint,
)
from compo_pipeline.counterfactuals.settings import EditorEndpointSettings


class EndpointEditor:
    """Asks a language model on a server, and stores each answer before it is checked."""

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
        """Hash of all that changes the texts; the server's address and retries do not."""
        own = self._settings
        parameters = (own.model, own.temperature, own.max_tokens, own.seeded, dict(own.more))
        return short_fingerprint(
            self.name, parameters, own.attempts, own.checks, self._seed, prompts_fingerprint()
        )

    def edit(self, requests: Sequence[EditRequest]) -> Iterator[EditedCaption | EditFailure]:
        """The edit of each caption, in the requests' order.

        Raises:
            SettingsError: as of `Endpoint.each`.
        """
        for result in self._endpoint.each(self._edit_one, requests):
            yield EditFailure(*result) if isinstance(result, NoAnswer) else result

    def _edit_one(self, ask: Ask, request: EditRequest) -> EditedCaption | EditFailure:
        """Ask until an answer passes the checks."""
        own = self._settings
        for attempt in range(own.attempts):
            messages = edit_messages(request.caption, request.role)
            body = request_body(own, messages, attempt_seed(self._seed, request, attempt))
            answer = ask(answer_key({"attempt": attempt, **body}), partial(dict, body))
            result = check_answer(request, answer, attempt, own.checks)
            if isinstance(result, EditedCaption):
                break
        return result


def open_editor(settings: EditorEndpointSettings, key: str, opening: Opening) -> EndpointEditor:
    """The editor of these settings."""
    cache = opening.state / "endpoint.sqlite"
    return EndpointEditor(settings, key=key, seed=opening.seed, cache=cache)
