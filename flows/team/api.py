"""Questions to the two servers over HTTP, without the seconds that importing their libraries would take."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any

from storage.errors import UserError

ANSWER_SECONDS = 5.0


class NoAnswer(UserError):
    """A server that cannot be reached, or does not do what it was asked to."""


class Unauthorised(NoAnswer):
    """A server that does not take the name and password."""


class Busy(NoAnswer):
    """A server that did nothing and asks to be asked again: its database is locked by another request."""


REFUSALS: dict[int, type[NoAnswer]] = {HTTPStatus.SERVICE_UNAVAILABLE: Busy, HTTPStatus.UNAUTHORIZED: Unauthorised}


def ask(url: str, body: Any = None, method: str = "", user: str = "", seconds: float = ANSWER_SECONDS) -> Any:
    """What a server answers.

    Args:
        body: sent as JSON; None sends nothing.
        method: by default POST with a body, else GET.
        user: `name:password`; empty for none.

    Raises:
        NoAnswer: if there is none, or it is a refusal.
    """
    request = urllib.request.Request(url, method=method or None)
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("content-type", "application/json")
    if user:
        request.add_header("authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        raise REFUSALS.get(error.code, NoAnswer)(f"{url} answers {error.code} {error.reason}") from None
    except (OSError, ValueError) as error:
        raise NoAnswer(f"{url} does not answer ({error})") from None
    try:
        return json.loads(text)
    except ValueError:
        return text


def answers(url: str) -> bool:
    """Whether a server does."""
    try:
        ask(url)
    except NoAnswer:
        return False
    return True
