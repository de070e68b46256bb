"""Settings of curation: near-duplicates, the classifier, the validation split, and changes to texts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

from storage.errors import UserError
from tasks.core.option import STRICT, option


@dataclass(frozen=True, config=STRICT)
class DedupSettings:
    """Detection of near-duplicates."""

    threshold: float = option(
        0.8, "Smallest Jaccard similarity of the sets of word 5-grams of near-duplicates.", ge=0.3, le=1
    )
    max_bucket: int = option(
        64,
        "Largest group of candidates that are all compared; in a larger one, each is compared with a few only.",
        ge=2,
    )


@dataclass(frozen=True, config=STRICT)
class ClassifierSettings:
    """Examples to train a document classifier on; without any there is no classifier.

    A text file is one example; JSON Lines and Parquet hold one per row, in the column `text`.
    """

    good: str = option("", "Files or folders, one per line, with examples of wanted text.")
    bad: str = option("", "Files or folders, one per line, with examples of unwanted text.")

    def __post_init__(self) -> None:
        if bool(self.good.strip()) != bool(self.bad.strip()):
            given, missing = ("good", "bad") if self.good.strip() else ("bad", "good")
            raise ValueError(
                f"classifier.{given} is given, but classifier.{missing} is not: a classifier learns from examples of "
                "both; give both or neither"
            )


def listed_paths(lines: str) -> list[Path]:
    """Return the paths of a setting that names one in each line."""
    return [Path(line.strip()).expanduser() for line in lines.splitlines() if line.strip()]


def shown_files(folder: Path) -> list[Path]:
    """Return the files in a folder and below it, sorted, without hidden ones and those in hidden folders."""
    inside = (file for file in folder.rglob("*") if file.is_file())
    return sorted(file for file in inside if not any(part[0] == "." for part in file.relative_to(folder).parts))


def given_files(setting: str, paths: Sequence[Path], wanted: str, suffixes: Collection[str] = ()) -> list[Path]:
    """Return the given files and the files in the given folders, except hidden ones, in order.

    Args:
        setting: Name of the setting, for messages.
        wanted: Advice for a folder without files.
        suffixes: Suffixes of the files to take from folders, in lower case; by default any.

    Raises:
        UserError: A path does not exist, or is a folder without such files.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = [file for file in shown_files(path) if not suffixes or file.suffix.lower() in suffixes]
            if not inside:
                kinds = f" of {', '.join(suffixes)}" if suffixes else ""
                raise UserError(f"{setting} names {path}, a folder without files{kinds}; {wanted}")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise UserError(f"{setting} names {path}, which does not exist: expected a file or a folder")
    return found


@dataclass(frozen=True, config=STRICT)
class CurateSettings:
    """Selection of documents and the split into training and validation; quality thresholds are `policy`'s."""

    validation_share: float = option(
        0.1, "Share of the documents held out; of a small corpus more, up to 5 % of its bytes.", gt=0, lt=1
    )
    salt: str = option("sheepfold", "Salt of the split's hash: another salt holds out other documents.")
    near_duplicates: Literal["drop", "keep"] = option(
        "drop", "`drop` keeps the best document of a cluster of near-duplicates, `keep` all."
    )
    max_containment: float = option(
        0.2, "Largest share of a validation document's 13-grams that training text may contain.", gt=0, le=1
    )
    paragraphs: Literal["cut", "keep"] = option("keep", "`cut` removes paragraphs that another document has already.")
    evaluation_sets: str = option(
        "", "Files or folders (Parquet, JSON Lines, text), one per line, whose text is kept out of training."
    )
    max_evaluation_share: float = option(
        0.5, "Drop documents with a larger share of evaluation text; of others, cut that text out.", gt=0, le=1
    )


REDACTED = "email,ip,iban,card,secret"  # phone numbers are not: what looks like one is mostly something else


@dataclass(frozen=True, config=STRICT)
class RefineSettings:
    """Changes to the texts of documents."""

    redact: str = option(
        REDACTED,
        "Kinds of personal data to replace, comma separated: email, ip, phone, iban, card, secret; empty for none.",
    )
    mend: bool = option(
        True, "Mend words that OCR misread where other text of the corpus shows how: a long s, a word read as two."
    )

    def __post_init__(self) -> None:
        unknown = sorted(set(self.kinds) - {"email", "ip", "phone", "iban", "card", "secret"})
        if unknown:
            raise ValueError(
                f"refine.redact names {', '.join(unknown)}, expected some of email, ip, phone, iban, card, secret"
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds, each once, in order."""
        return tuple(sorted({kind.strip() for kind in self.redact.split(",") if kind.strip()}))
