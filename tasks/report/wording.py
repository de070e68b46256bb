"""Numbers and names as reports write them."""

from __future__ import annotations

_UNITS = ("bytes", "kB", "MB", "GB", "TB")
_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def size_of(n_bytes: float) -> str:
    """Bytes in a unit that keeps the number short; powers of ten."""
    if n_bytes < 1000:
        return "1 byte" if n_bytes == 1 else f"{n_bytes:.0f} bytes"
    place = 0
    while n_bytes >= 999.5 and place < len(_UNITS) - 1:
        n_bytes, place = n_bytes / 1000, place + 1
    return f"{n_bytes:.3g} {_UNITS[place]}"


def share(part: float, whole: float) -> str:
    """A part in per cent; what is not nothing is not written as nothing, what is not all not as all."""
    if not whole:
        return "0 %"
    value = 100 * part / whole
    if 0 < value < 0.1:
        return "< 0.1 %"
    if 99.5 <= value < 100:
        return "> 99 %"
    return f"{value:.0f} %" if value >= 9.95 or value == 0 else f"{value:.1f} %"


def percent(value: float) -> str:
    """A share to two places, for sums that must come out; what is not all is not written as all."""
    if 0 < value < 0.00005:
        return "< 0.01 %"
    if 0.99995 <= value < 1:
        return "> 99.99 %"
    return f"{100 * value:.2f} %"


def counted(n: int, noun: str) -> str:
    """A number of things."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def amount(value: float) -> str:
    """A number in three digits."""
    for step, letter in _STEPS:
        if value >= step * 0.9995:
            return f"{value / step:.3g}{letter}"
    return f"{value:.3g}"


def cut(text: str, length: int) -> str:
    """A text that is no longer than that; its end goes."""
    return text if len(text) <= length else text[: length - 1] + "…"


def cut_middle(text: str, length: int) -> str:
    """A path that is no longer than that; folders in the middle go, because the name stands at the end."""
    if len(text) <= length:
        return text
    tail = (length - 1) * 2 // 3
    return text[: length - 1 - tail] + "…" + text[-tail:]
