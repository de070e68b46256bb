"""Artefact references and manifests. An artefact is committed when its manifest exists."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from storage.digest import rows_digest, sha256_json

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST_FORMAT = 1

Name = tuple[str, str]  # stage and key of an artefact


@dataclass(frozen=True, order=True)
class ArtifactRef:
    """Reference to one artefact: its place (stage, key) and its content (digest)."""

    stage: str
    key: str
    digest: str

    @property
    def made(self) -> bool:
        """False for an artefact that a plan found missing."""
        return bool(self.digest)


@dataclass(frozen=True)
class RefSet:
    """Several artefacts read as one table, such as the segments of a corpus.

    Attributes:
        refs: the artefacts, one for each segment; two segments of equal content may share one.
        digest: logical digest of the rows in use, independent of their distribution over the artefacts.
        segments: keys of the extraction segments of the artefacts, in the same order. An artefact's manifest may name
            another segment of the same content.
        live: for each artefact, the ids of the documents to read from it; None for all.
    """

    refs: tuple[ArtifactRef, ...]
    digest: str
    segments: tuple[str, ...] = field(default=(), compare=False)
    live: tuple[Collection[str], ...] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, refs: Sequence[ArtifactRef]) -> RefSet:
        """Return whole artefacts as one input; without a digest if one of them is missing in a plan."""
        made = all(ref.made for ref in refs)
        return cls(tuple(refs), rows_digest((ref.key, ref.digest) for ref in refs) if made else "")

    @property
    def made(self) -> bool:
        """False if a plan found one of the artefacts missing."""
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
        counts: figures such as rows and computed files; not part of the key.
        tools: versions of the tools that were used; recorded, not part of the key.
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
        """Reference to the artefact."""
        return ArtifactRef(self.stage, self.key, self.digest)

    @property
    def content_key(self) -> str:
        """Key, computed from stage, version, inputs and settings."""
        digests = {name: entry["digest"] for name, entry in self.inputs.items()}
        return artifact_key(self.stage, self.version, digests, self.settings)

    def input_refs(self, name: str | None = None) -> list[ArtifactRef]:
        """Return the inputs of the artefact, or only those of the argument `name`."""
        chosen = [self.inputs[name]] if name is not None else list(self.inputs.values())
        return [ArtifactRef(**ref) for entry in chosen for ref in entry["refs"]]

    def to_json(self) -> str:
        """Return the text of `manifest.json`."""
        return json.dumps({"format": MANIFEST_FORMAT, **asdict(self)}, indent=1, sort_keys=True, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Return the manifest with this text of `manifest.json`.

        Raises:
            ValueError: if the text is not a manifest of this format, or a file's name is outside of the artefact.
        """
        record = json.loads(text)
        if not isinstance(record, dict) or record.pop("format", None) != MANIFEST_FORMAT:
            raise ValueError(f"not a manifest of format {MANIFEST_FORMAT}")
        record["files"] = [FileEntry(**entry) for entry in record["files"]]
        outside = [entry.name for entry in record["files"] if not stays_inside(entry.name)]
        if outside:
            raise ValueError(f"the file name {outside[0]!r} is outside of the artefact")
        return cls(**record)


@dataclass(frozen=True)
class StageFacts:
    """Properties of a stage that compaction, garbage collection and verification use.

    Attributes:
        tables: schema of each Parquet table, by file name.
        keep_with: arguments; garbage collection keeps an artefact while these inputs are kept.
        pinned: the ref `<stage>/<corpus>` records the artefact that a corpus uses.
    """

    tables: Mapping[str, pa.Schema] = field(default_factory=dict)
    keep_with: tuple[str, ...] = ()
    pinned: bool = False


def artifact_key(stage: str, version: int, inputs: Mapping[str, str], settings: Mapping[str, Any]) -> str:
    """Return the key of an artefact.

    Args:
        inputs: logical digest of each input, by name of the argument.
    """
    return sha256_json({"stage": stage, "version": version, "inputs": inputs, "settings": settings})


def stays_inside(name: str) -> bool:
    """Return True if a relative path from an untrusted source stays inside its folder."""
    return "\0" not in name and not {"", ".", ".."} & set(name.split("/"))


def describe_inputs(inputs: Mapping[str, Input]) -> dict[str, dict[str, Any]]:
    """Return inputs in the form of `Manifest.inputs`."""
    described = {}
    for name, value in inputs.items():
        refs = value.refs if isinstance(value, RefSet) else (value,)
        described[name] = {"digest": value.digest, "refs": [asdict(ref) for ref in sorted(set(refs))]}
    return described
