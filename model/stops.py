"""Strings that end a continuation, wherever the borders of tokens lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

# The text that new ids add to the text of the ids before them
Decode = Callable[[Sequence[int], Sequence[int]], str]

_CONTEXT = 8  # tokens before the part that is decoded: some tokenisers write a token otherwise at the start of a text
_TOKENS_PER_CHAR = 4  # at most, where a token is a byte


class StopStrings:
    """Finds the string that a continuation ends with.

    Args:
        stops: the strings.
        decode: gives their text to tokens.
    """

    def __init__(self, stops: Sequence[str], decode: Decode) -> None:
        self.stops, self.decode = stops, decode
        self.n_tokens = _TOKENS_PER_CHAR * max(len(stop) for stop in stops) + 1

    def found(self, prompt: Sequence[int], ids: Sequence[int]) -> str | None:
        """The string that the newest token completed, in it or at its end; of several the one that begins first.

        Args:
            prompt: tokens before the continuation.
            ids: the continuation. Its last few tokens alone are decoded.
        """
        first = max(0, len(ids) - self.n_tokens)
        tail = ids[first:]
        before = ids[first - _CONTEXT : first] if first >= _CONTEXT else [*prompt[-_CONTEXT:], *ids[:first]]
        text, older = self.decode(before, tail), self.decode(before, tail[:-1])
        hits = [(place, stop) for stop in self.stops for place in _places(stop, text)]
        fresh = [(place, stop) for place, stop in hits if not older.startswith(stop, place)]
        return min(fresh)[1] if fresh else None


def _places(part: str, text: str) -> Iterator[int]:
    """Where it occurs, also over itself."""
    place = text.find(part)
    while place >= 0:
        yield place
        place = text.find(part, place + 1)
