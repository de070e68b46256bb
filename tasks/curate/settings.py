"""Settings of curation: what counts as a duplicate, how documents are split, what of their text gives way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DedupSettings:
    """What counts as a near-duplicate.

    Attributes:
        threshold: least Jaccard similarity of the sets of five-word shingles.
        max_bucket: a group of candidates larger than this is compared with its best members only.
    """

    threshold: float = 0.8
    max_bucket: int = 64

    def __post_init__(self) -> None:
        if not 0.3 <= self.threshold <= 1:
            raise ValueError(f"dedup.threshold is {self.threshold}, expected 0.3 to 1")
        if self.max_bucket < 2:
            raise ValueError(f"dedup.max_bucket is {self.max_bucket}, expected 2 or more")


@dataclass(frozen=True)
class CurateSettings:
    """Which documents are used, and which of them models are measured on; thresholds of quality are `policy`'s.

    Attributes:
        validation_share: share of the documents held out.
        salt: changes which documents those are.
        near_duplicates: `drop` keeps the best of documents that nearly equal each other, `keep` keeps them all.
        max_containment: largest share of a document's runs of thirteen words that may stand on the other side.
        paragraphs: `cut` leaves out paragraphs that stand in another document already, `keep` keeps them.
        evaluation_sets: files or folders, one a line, whose text must not be trained on (Parquet, JSON lines, text).
        max_evaluation_share: a document with a larger share of such text is dropped; of others the text is cut out.
    """

    validation_share: float = 0.1
    salt: str = "sheepfold"
    near_duplicates: str = "drop"
    max_containment: float = 0.2
    paragraphs: str = "keep"
    evaluation_sets: str = ""
    max_evaluation_share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.validation_share < 1:
            raise ValueError(f"curate.validation_share is {self.validation_share}, expected a share between 0 and 1")
        for name, allowed in (("near_duplicates", ("drop", "keep")), ("paragraphs", ("cut", "keep"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"curate.{name} is {getattr(self, name)!r}, expected {' or '.join(allowed)}")
        for name in ("max_containment", "max_evaluation_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"curate.{name} is {getattr(self, name)}, expected a share above 0 and at most 1")


REDACTED = "email,ip,iban,card,secret"  # phone numbers are not: what looks like one is mostly something else


@dataclass(frozen=True)
class RefineSettings:
    """What of the documents' text gives way to stand-ins.

    Attributes:
        redact: kinds of personal data, comma separated: email, ip, phone, iban, card, secret; empty for none.
    """

    redact: str = REDACTED

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
