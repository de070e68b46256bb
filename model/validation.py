"""What configurations share: the way to a plain dictionary and back, and checks that name what is wrong.

Frozen dataclasses check themselves: a wrong value is refused where it is written, not hours later in a training loop.
Every field has an effect; a setting that would be ignored is refused.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self


def derived() -> Any:
    """A field that __post_init__ works out from the others (`resolve`) or refuses (`refuse`)."""
    return dataclasses.field(default=None)


def limited(default: Any, **limits: float) -> Any:
    """Return a dataclass field for a number that is at least `ge` or above `gt`, and at most `le`."""
    return dataclasses.field(default=default, metadata=limits)


class Settings:
    """What the three configurations share: the way to and from a dictionary, and fields that follow from others."""

    def check_limits(self) -> None:
        """Refuse numbers outside the limits of their fields; called from __post_init__.

        Raises:
            ValueError: naming the field.
        """
        for item in dataclasses.fields(self):  # type: ignore[arg-type]
            value, limits = getattr(self, item.name), item.metadata
            if not limits.keys() & {"ge", "gt"} or (value is None and item.default is None):
                continue
            low = limits.get("ge", limits.get("gt"))
            if "int" in str(item.type):
                check_int(item.name, value, low)
            else:
                check_number(item.name, value, low, limits.get("le", math.inf), open_low="gt" in limits)

    def resolve(self, name: str, default: Any) -> None:
        """Gives a field that was left out its value; called from __post_init__ only."""
        if getattr(self, name) is None:
            object.__setattr__(self, name, default)

    def refuse(self, names: Sequence[str], why: str) -> None:
        """Refuses fields that would be ignored.

        Raises:
            ValueError: one of them has another value than its default.
        """
        defaults = {field.name: field.default for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        for name in names:
            value = getattr(self, name)
            if value != defaults[name]:
                raise ValueError(f"{name}={value!r} has no effect: {why}; leave it out")

    def to_dict(self) -> dict[str, Any]:
        """Every field by name, as JSON types (tuples become lists)."""
        found = dataclasses.asdict(self)  # type: ignore[call-overload]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """The configuration with these fields.

        Args:
            settings: field names and values; fields that are left out keep their defaults.

        Raises:
            ValueError: a name is no field, a needed field is missing, or a value is not allowed.
        """
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        known = {field.name for field in fields}
        unknown = sorted(set(settings) - known)
        if unknown:
            raise ValueError(
                f"{cls.__name__} has no setting {', '.join(map(repr, unknown))}; "
                f"its settings are {', '.join(sorted(known))}"
            )
        needed = {field.name for field in fields if field.default is dataclasses.MISSING}
        missing = sorted(needed - set(settings))
        if missing:
            raise ValueError(f"{cls.__name__} needs {', '.join(map(repr, missing))}; add it to the settings")
        return cls(**settings)


def check_int(name: str, value: object, low: int) -> None:
    """Refuses what is no whole number of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{name}={value!r}; expected a whole number of at least {low}")


def check_number(
    name: str, value: object, low: float, high: float, *, open_low: bool = False, open_high: bool = False
) -> None:
    """Refuses what is no finite number between `low` and `high`, ends included unless they are open."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if not good or (open_low and value == low) or (open_high and value == high) or value == math.inf:
        opening, closing = "(" if open_low else "[", ")" if open_high or high == math.inf else "]"
        raise ValueError(f"{name}={value!r}; expected a number in {opening}{low:g}, {high:g}{closing}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuses what is none of the choices."""
    if value not in choices:
        raise ValueError(f"{name}={value!r}; expected one of {', '.join(choices)}")


def check_bool(name: str, value: object) -> None:
    """Refuses what is neither True nor False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}; expected True or False")
