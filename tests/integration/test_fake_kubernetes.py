"""The small API server of these tests answers as the real one has been recorded to."""

from __future__ import annotations

import http.client
import json
import uuid
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from fake_kubernetes.conversation import RECORDED, Side, play
from fake_kubernetes.server import TOKEN, FakeApi
from wait import PATIENCE_S

if TYPE_CHECKING:
    from typing import Any


class FakeSide(Side):
    """The small server."""

    bookmark_s = 1

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.uids: dict[str, str] = {}

    def connect(self) -> http.client.HTTPConnection:
        address = urlsplit(self.api.url)
        return http.client.HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE_S)

    def token(self, account: str) -> str:
        return "a-token-of-nobodys" if account == "nobody" else TOKEN

    def prepare(self, account: str) -> None:
        # It knows one account, and refuses when it is told to.
        if account == "powerless":
            self.api.refusals.append(403)

    def put(self, name: str, node: str, annotations: dict[str, str] | None = None) -> None:
        uid = self.uids.setdefault(name, str(uuid.uuid4()))
        self.api.put(name, uid, dict(annotations or {}), node=node)

    def delete(self, name: str) -> None:
        self.api.delete(self.uids[name])

    def reach(self) -> None:
        self.api.bookmark()

    def break_watches(self) -> None:
        self.api.drop_watches()

    def return_without_history(self) -> None:
        self.api.restart()


RECORDING: dict[str, Any] = json.loads(RECORDED.read_text())


@pytest.fixture(scope="module")
def heard() -> dict[str, Any]:
    with FakeApi() as api:
        return play(FakeSide(api))


def test_every_step_was_recorded(heard: dict[str, Any]) -> None:
    assert heard.keys() == RECORDING.keys()


@pytest.mark.parametrize("step", RECORDING)
def test_it_answers_as_the_real_one(heard: dict[str, Any], step: str) -> None:
    assert heard[step] == RECORDING[step]
