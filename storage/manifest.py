"""The manifest: what an artefact is made of, and from what. Its presence is the commit; lineage is read from it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from storage.digest import sha256_json

MANIFEST_FORMAT = 1


@dataclass(frozen=True, order=True)
class ArtifactRef:
    """Names one artefact: where it lies (stage, key) and what it holds (digest)."""

    stage: str
    key: str
    digest: str

    @property
    def made(self) -> bool:
        """False for an artefact that a plan knows to be missing."""
        return bool(self.digest)


@dataclass(frozen=True)
class RefSet:
    """Several artefacts read as one table, such as the segments of a corpus.

    Attributes:
        refs: the artefacts, one for each segment; two segments of equal content may share one.
        digest: logical digest of the rows in use, independent of how they are spread over the artefacts.
        segments: keys of the extraction segments behind the artefacts, in the same order. What an artefact's manifest
            says of that need not be true: artefacts are found by content, and another segment may have had the same.
        live: for each artefact, the ids of the documents that are to be read there; None where nobody says.
    """

    refs: tuple[ArtifactRef, ...]
    digest: str
    segments: tuple[str, ...] = field(default=(), compare=False)
    live: tuple[Collection[str], ...] | None = field(default=None, compare=False, repr=False)

    @property
    def made(self) -> bool:
        """False where a plan knows one of the artefacts to be missing."""
        return bool(self.digest)

    @property
    def stage(self) -> str:
        """Stage of the artefacts."""
        return self.refs[0].stage if self.refs else ""


Input = ArtifactRef | RefSet


@dataclass(frozen=True)
class FileEntry:
    """One data file of an artefact."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Record of one committed artefact.

    Attributes:
        inputs: name of the argument -> its logical digest and the artefacts behind it.
        settings: the settings the stage read; part of the key.
        counts: what was counted on the way (rows, files computed); not part of the key.
        tools: versions of the tools that did the work; recorded, not part of the key.
        modes: seed, generators and kernels in use (see `model.seed_everything`); recorded, not part of the key.
        code: fingerprint of the stage's modules; recorded, not part of the key.
        seconds: wall time of the computation.
    """

    stage: str
    version: int
    key: str
    digest: str
    inputs: dict[str, dict[str, Any]]
    settings: dict[str, Any]
    files: list[FileEntry]
    counts: dict[str, int] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)
    code: str = ""
    created: str = ""
    seconds: float = 0.0

    @property
    def ref(self) -> ArtifactRef:
        """The artefact's name."""
        return ArtifactRef(self.stage, self.key, self.digest)

    @property
    def content_key(self) -> str:
        """The key that follows from stage, version, inputs and settings."""
        digests = {name: entry["digest"] for name, entry in self.inputs.items()}
        return sha256_json({"stage": self.stage, "version": self.version, "inputs": digests, "settings": self.settings})

    def input_refs(self, name: str | None = None) -> list[ArtifactRef]:
        """The artefacts this one was made from; only those of argument `name` when given."""
        chosen = [self.inputs[name]] if name is not None else list(self.inputs.values())
        return [ArtifactRef(**ref) for entry in chosen for ref in entry["refs"]]

    def to_json(self) -> str:
        """Text of `manifest.json`."""
        return json.dumps({"format": MANIFEST_FORMAT, **asdict(self)}, indent=1, sort_keys=True, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Read `manifest.json`.

        Raises:
            ValueError: if the text is not a manifest of this format, or a file's name leads out of the artefact.
        """
        record = json.loads(text)
        if not isinstance(record, dict) or record.pop("format", None) != MANIFEST_FORMAT:
            raise ValueError(f"not a manifest of format {MANIFEST_FORMAT}")
        record["files"] = [FileEntry(**entry) for entry in record["files"]]
        outside = [entry.name for entry in record["files"] if not stays_inside(entry.name)]
        if outside:
            raise ValueError(f"the file name {outside[0]!r} leads out of the artefact")
        return cls(**record)


def stays_inside(name: str) -> bool:
    """Whether a name that somebody else wrote means something in the folder that it is taken for, and not outside."""
    return "\0" not in name and not {"", ".", ".."} & set(name.split("/"))


def describe_inputs(inputs: Mapping[str, Input]) -> dict[str, dict[str, Any]]:
    """Inputs in the form a manifest keeps."""
    described = {}
    for name, value in inputs.items():
        refs = value.refs if isinstance(value, RefSet) else (value,)
        described[name] = {"digest": value.digest, "refs": [asdict(ref) for ref in sorted(set(refs))]}
    return described
