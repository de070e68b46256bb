"""Settings of the classifier: where the examples lie. Imports nothing heavy, for every command reads settings."""

from __future__ import annotations

from pathlib import Path

from pydantic.dataclasses import dataclass

from tasks.core.option import STRICT, option


@dataclass(frozen=True, config=STRICT)
class ClassifierSettings:
    """Examples to train a document classifier on; without any there is no classifier.

    A text file is one example; JSON Lines and Parquet hold one per row, in the column `text`.
    """

    good: str = option("", "Files or folders, one per line, with examples of wanted text.")
    bad: str = option("", "Files or folders, one per line, with examples of unwanted text.")

    def __post_init__(self) -> None:
        if bool(self.good_paths) != bool(self.bad_paths):
            given, missing = ("good", "bad") if self.good_paths else ("bad", "good")
            raise ValueError(
                f"classifier.{given} is given, but classifier.{missing} is not: a classifier learns from examples of "
                "both; give both or neither"
            )

    @property
    def wanted(self) -> bool:
        """Whether there is to be a classifier."""
        return bool(self.good_paths)

    @property
    def good_paths(self) -> list[Path]:
        """Files and folders of the good examples."""
        return _paths(self.good)

    @property
    def bad_paths(self) -> list[Path]:
        """Files and folders of the bad examples."""
        return _paths(self.bad)


def _paths(lines: str) -> list[Path]:
    return [Path(line.strip()).expanduser() for line in lines.splitlines() if line.strip()]
