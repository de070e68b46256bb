"""External evaluation sets: what no training text may hold, as hashes of its runs of thirteen words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from storage.digest import sha256_file
from storage.errors import UserError
from storage.manifest import ArtifactRef
from storage.schemas import GRAMS_FILE
from tasks.core.stage import Work, stage
from tasks.curate.hygiene import normalise_text
from tasks.readers.evaluation_files import evaluation_files, evaluation_format, evaluation_grams

if TYPE_CHECKING:
    from tasks.core.run import Run


@dataclass(frozen=True)
class EvaluationSetSettings:
    """Identity of the sets; where they lie comes as a resource.

    Attributes:
        files: of each file that is read, how (its suffix decides) and its digest; sorted.
    """

    files: tuple[str, ...] = ()

    @classmethod
    def of(cls, paths: list[Path]) -> EvaluationSetSettings:
        """What of the sets goes into the stage's key.

        Raises:
            UserError: if one does not exist, or is a folder without a file that would be read.
        """
        for path in paths:
            if not path.exists():
                raise UserError(f"curate.evaluation_sets names {path}, which does not exist")
        read = {f"{evaluation_format(file)} {sha256_file(file)}" for file in evaluation_files(paths)}
        return cls(tuple(sorted(read)))


@stage("evaluation_sets", version=2, unkeyed=("files",))
def evaluation_sets(work: Work, settings: EvaluationSetSettings, *, files: ArtifactRef | None = None) -> str:
    """Hash the runs of thirteen words of external evaluation sets; none give an empty table."""
    paths = [] if files is None else work.files(files)
    grams = evaluation_grams(paths, lambda text: normalise_text(text, "text")) if paths else np.zeros(0, np.uint64)
    np.save(work.out / GRAMS_FILE, grams, allow_pickle=False)
    work.counts["rows"] = len(grams)
    return sha256_file(work.out / GRAMS_FILE)


def forbidden_grams(run: Run, asked: str) -> ArtifactRef:
    """Return the 13-grams of external evaluation sets, which must not be trained on.

    Args:
        asked: Files and folders of the sets, one per line.

    Raises:
        UserError: if one does not exist, or is a folder without a file that would be read.
    """
    paths = [Path(line.strip()).expanduser() for line in asked.splitlines() if line.strip()]
    if not paths:
        return evaluation_sets(run, EvaluationSetSettings())
    EvaluationSetSettings.of(paths)  # names a path that is not there
    files = {f"{number:04}/{file.name}": file for number, file in enumerate(evaluation_files(paths))}
    ref, copies = run.add("evaluation_set_files", files)
    return evaluation_sets(run, EvaluationSetSettings.of(copies), files=ref)
