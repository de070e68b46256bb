"""From what, with which settings and tools a dataset was made: read from the manifests of its artefacts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storage.digest import canonical_json, sha256_json
from storage.lineage import manifest_of
from storage.manifest import Manifest

if TYPE_CHECKING:
    from storage.catalog import Catalog

# in the order of the flow; what trains, measures and generates is no part of a dataset
STAGES = (
    "import", "extract", "snapshot", "normalise", "measure", "classifier", "score", "dedup", "evaluation_sets",
    "curate", "refine", "tokenizer", "tokenise", "groups", "dataset",
)  # fmt: skip
MAX_ITEMS = 12  # of a list; a longer one, such as the contents of a segment, is named by its digest


@dataclass(frozen=True)
class Made:
    """What one stage made.

    Attributes:
        artefacts: how many; a stage that works by segments has one for each.
        key, digest: of the one artefact, or over those of all.
        settings: what all artefacts share; what differs, or is a long list, is named by its digest.
        tools: name -> versions.
    """

    stage: str
    versions: tuple[int, ...]
    artefacts: int
    key: str
    digest: str
    settings: dict[str, Any]
    tools: dict[str, str]


def provenance(catalog: Catalog) -> list[Made]:
    """What each stage made for the corpus's dataset, in the order of the flow."""
    found: dict[str, list[Manifest]] = {}
    for stage in STAGES:
        refs = catalog.state.get(stage, [])
        if refs:
            found[stage] = [manifest_of(catalog.store, ref) for ref in sorted(set(refs))]
    # inputs that a run does not note by themselves
    for stage, argument, of in (("evaluation_sets", "evaluation", "curate"), ("classifier", "classifier", "score")):
        if of in found and argument in found[of][0].inputs:
            found[stage] = [manifest_of(catalog.store, ref) for ref in found[of][0].input_refs(argument)]
    return [_made(stage, found[stage]) for stage in STAGES if found.get(stage)]


def _made(stage: str, manifests: Sequence[Manifest]) -> Made:
    tools: dict[str, set[str]] = {}
    for manifest in manifests:
        for name, version in manifest.tools.items():
            if version and not name.endswith("_reason"):  # such sentences stand with the tokeniser
                tools.setdefault(name, set()).add(version)
    keys, digests = ([getattr(manifest, name) for manifest in manifests] for name in ("key", "digest"))
    return Made(
        stage=stage,
        versions=tuple(sorted({manifest.version for manifest in manifests})),
        artefacts=len(manifests),
        key=keys[0] if len(keys) == 1 else sha256_json(sorted(keys)),
        digest=digests[0] if len(digests) == 1 else sha256_json(sorted(digests)),
        settings=shared_settings([manifest.settings for manifest in manifests]),
        tools={name: ", ".join(sorted(versions)) for name, versions in sorted(tools.items())},
    )


def shared_settings(settings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Settings by name, without those that are left open."""
    shared: dict[str, Any] = {}
    for name in sorted({name for item in settings for name in item}):
        values = {canonical_json(item.get(name)) for item in settings}
        if len(values) > 1:
            shared[name] = f"{len(values):,} different values, sha256 {sha256_json(sorted(values))}"
        else:
            shared[name] = _short(settings[0][name])
    return {name: value for name, value in shared.items() if value is not None}


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _short(item) for name, item in value.items() if item is not None}
    if isinstance(value, list) and len(value) > MAX_ITEMS:
        return f"{len(value):,} values, sha256 {sha256_json(value)}"
    return value
