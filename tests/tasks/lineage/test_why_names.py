"""`why` finds things by the names that people have for them, and says so when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from ingest_run import home_at, ingest, prose, write
from tiny_run import Ran, run_prepare, write_texts

from storage.errors import UserError
from storage.store import StoreError, open_store
from tasks.lineage.why import explain


def why(ran: Ran, thing: str) -> dict[str, object]:
    return explain(ran.run.store, thing, "default")


@pytest.mark.full
def test_a_document_goes_by_path_absolute_path_id_and_eight_digits(tiny: Ran, tiny_source: Path) -> None:
    found = why(tiny, "text-03.txt")
    (file,) = found["files"]  # type: ignore[misc]
    for name in (file["doc_id"], file["doc_id"][:8], str(tiny_source / "text-03.txt"), "./text-03.txt"):
        assert {**why(tiny, name), "thing": ""} == {**found, "thing": ""}, name


def test_an_artefact_goes_by_key_eight_digits_and_stage(tiny: Ran) -> None:
    ref = tiny.prepared.dataset
    for name in (ref.key, ref.key[:8], f"dataset/{ref.key}", f"dataset/{ref.key[:8]}"):
        found = why(tiny, name)
        assert found["artifact"] == f"dataset/{ref.key}", name
        assert f"train/{tiny.checkpoint.key}" in found["led_to"]  # type: ignore[union-attr, operator]
    with pytest.raises(StoreError, match="is not found"):
        why(tiny, f"train/{ref.key}")


@pytest.mark.full
def test_the_files_of_a_dataset_are_those_of_its_own_listing_although_its_tokeniser_is_older(tmp_path: Path) -> None:
    source, home = write_texts(tmp_path / "in", range(6)), home_at(tmp_path / "home")
    run_prepare(home, source)
    write_texts(source, [6])
    ran = run_prepare(home, source)
    found = why(ran, f"dataset/{ran.prepared.dataset.key}")
    assert [row["path"] for row in found["files"]] == [f"text-{n:02}.txt" for n in range(7)]  # type: ignore[union-attr]


def test_a_name_of_nothing_is_answered_with_what_has_names(tiny: Ran) -> None:
    with pytest.raises(UserError, match=r"not a model .alias.*an artefact .STAGE.*a completion.*a document"):
        why(tiny, "letters/nobody.txt")


def test_a_document_whose_file_is_gone_is_known_still(tmp_path: Path) -> None:
    source = write(tmp_path / "in", {f"{number}.txt": prose(number) for number in range(4)})
    home = home_at(tmp_path / "home")
    ingest(home, source)
    (source / "2.txt").unlink()
    ingest(home, source)
    found = explain(open_store(home.store), "2.txt", "default")
    assert found["note"].startswith("not in corpus 'default' any more")
    assert [file["path"] for file in found["files"]] == ["2.txt"]
    assert found["seen_by"] == []
