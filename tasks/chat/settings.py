"""Settings of chat tuning."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic.dataclasses import dataclass

from tasks.core.option import STRICT, option
from tasks.text.conversations import KINDS, USER

ALL = "all"
# Recorded with a model that learnt to answer: small networks repeat themselves without end. Of the answers of one with
# 1.3 million parameters 85 % ended by themselves without it, and 99 % with it.
SAMPLING = {"repetition_penalty": 1.1}
_ITEM = re.compile(r"\s*([^\s,=][^,=]*?)\s*=\s*([^\s,=:][^,=:\n]*?)\s*(?:,|$)")


@dataclass(frozen=True, config=STRICT)
class ChatSettings:
    """Training on conversations found in the documents instead of on their text, with the loss on the answers alone."""

    pairs: str = option(
        "",
        f"Kinds of conversations to train on, separated by commas ({', '.join(KINDS)}), or `{ALL}`; empty trains on "
        "the text of the documents.",
    )
    template: str = option(
        "",
        "File with the form of a chat as a Jinja template; empty is the base's own, or without one `ROLE: TEXT` with "
        "the id that ends a text behind every answer.",
    )
    roles: str = option("user=User, assistant=Assistant, system=System", "Names of the roles in that form.")
    answers: int = option(
        100, "Questions of evaluation documents that a model is asked, chosen by hash; 0 takes all.", ge=0
    )
    answer_tokens: int = option(512, "Most tokens of an answer to them, as far as the context has room.", ge=1)

    def __post_init__(self) -> None:
        unknown = set(self.kinds) - set(KINDS)
        if unknown:
            raise ValueError(f"chat.pairs names {sorted(unknown)[0]!r}; expected {', '.join(KINDS)} or {ALL}")
        if not self.pairs and self.template:
            raise ValueError(f"chat.template is {self.template}, but chat.pairs is empty; set it, such as to {ALL}")
        _ = self.names

    @property
    def kinds(self) -> Sequence[str]:
        """Kinds of conversations, in the order of `KINDS`; empty without chat tuning."""
        asked = [name.strip() for name in self.pairs.split(",") if name.strip()]
        return KINDS if ALL in asked else sorted(asked, key=lambda name: KINDS.index(name) if name in KINDS else -1)

    @property
    def names(self) -> dict[str, str]:
        """Names of the roles.

        Raises:
            ValueError: they are written otherwise.
        """
        found: dict[str, str] = {}
        at = 0
        while at < len(self.roles):
            item = _ITEM.match(self.roles, at)
            if item is None or item[1] not in ("user", "assistant", "system"):
                raise ValueError(
                    f"chat.roles is {self.roles!r}; expected names of the roles user, assistant and system, such as "
                    "user=Reader, assistant=Archive"
                )
            found[item[1]] = item[2]
            at = item.end()
        return {USER: "User", "assistant": "Assistant", "system": "System", **found}
