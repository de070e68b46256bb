"""Everything from files to completions with a store and MLflow's artefacts on S3, then again from an empty home."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest
from prefect.states import Completed
from proxy import PASS, Answer, Proxy
from s3 import BUCKET, Objects, lead_to
from stage_samples import Calls, TextSettings, letters
from tiny_run import Ran, home_at, run_whole, tiny_settings, with_tracking, write_texts

from flows.stages import stage_facts
from storage.catalog import Catalog
from storage.digest import sha256_json
from storage.lineage import manifest_of
from storage.store import open_store
from storage.tracking import Tracking
from storage.verify import check_store
from tasks.core.executor import _outcome
from tasks.core.machine import Machine
from tasks.core.run import Run
from tasks.core.stage import Call, Request, StageResult, Work, stage


@dataclass(frozen=True)
class Runs:
    """A run, and the same from an empty home."""

    first: Ran
    second: Ran
    address: str


@pytest.fixture(scope="module")
def runs(s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder, address = tmp_path_factory.mktemp("runs"), f"s3://{BUCKET}/runs"
    source = write_texts(folder / "source")
    with pytest.MonkeyPatch.context() as patch:
        lead_to(patch, s3_endpoint)
        homes = [replace(with_tracking(home_at(folder / name)), store=address) for name in ("first", "second")]
        homes[0] = replace(homes[0], artifacts=f"s3://{BUCKET}/artifacts")
        first, second = (run_whole(home, source, tiny_settings()) for home in homes)
    return Runs(first, second, address)


@pytest.fixture(autouse=True)
def server(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lead_to(monkeypatch, s3_endpoint)


def test_a_second_machine_with_an_empty_home_finds_everything(runs: Runs) -> None:
    assert runs.first.computed() and runs.second.computed() == {}
    assert runs.second.checkpoint == runs.first.checkpoint and runs.second.completions == runs.first.completions
    assert runs.second.metrics == runs.first.metrics


def test_its_cache_holds_what_it_read_and_no_more(runs: Runs) -> None:
    cache = runs.second.run.home.cache
    assert list(cache.rglob("extracts.parquet")) and not list(cache.rglob("model.safetensors"))
    assert not (runs.second.run.home.path / "store").exists()


def test_tables_are_queried_through_the_cache(runs: Runs, tmp_path: Path) -> None:
    for cache in (runs.second.run.home.cache, tmp_path):
        catalog = Catalog(open_store(runs.address, cache), "default")
        assert catalog.query("select count(*) as n from files where status = 'ok'") == [{"n": 12}]
        (row,) = catalog.query("select sum(len(ids)) as n, count(*) as documents from tokens")
        assert row["n"] > row["documents"] > 0


def test_the_store_is_whole_and_nobody_is_left_at_work(runs: Runs, tmp_path: Path) -> None:
    store = open_store(runs.address, tmp_path)
    checks = check_store(store, stage_facts())
    assert all(check.checked for check in checks) and not any(check.problems for check in checks)
    assert store.unfinished() == store.unfinished(owned=True) == [] and store.owners() == []
    names = Objects(runs.address).sizes()
    assert not [name for name in names if name.startswith((".locks/", ".work/"))]


def test_mlflow_names_datasets_by_their_place_on_s3(runs: Runs) -> None:
    tracking = Tracking(runs.first.run.home)
    assert runs.first.checkpoint is not None
    (run_id,) = tracking.runs(runs.first.checkpoint.key)
    logged = {entry.dataset.source for entry in tracking.client.get_run(str(run_id)).inputs.dataset_inputs}
    data = manifest_of(runs.first.run.store, runs.first.checkpoint).input_refs("dataset")[0]
    assert logged == {json.dumps({"uri": f"{runs.address}/{data.stage}/{data.key}"})}


def test_files_beside_a_run_in_mlflow_are_on_s3(runs: Runs, tmp_path: Path) -> None:
    tracking = Tracking(runs.first.run.home)
    assert runs.first.checkpoint is not None
    (run_id,) = tracking.runs(runs.first.checkpoint.key)
    assert run_id is not None
    (tmp_path / "report.md").write_text("a report")
    tracking.client.log_artifact(run_id, str(tmp_path / "report.md"))
    assert tracking.has_file(run_id, "report.md")
    assert run_id in Objects(f"s3://{BUCKET}/artifacts").named("report.md")


def made_elsewhere(run: Run, request: Request) -> StageResult:
    """Let a copy of a request be carried out, as on Ray; returns what this run finds of it in the store."""
    there: Request = pickle.loads(pickle.dumps(request))  # noqa: S301  # what we dumped ourselves
    there.stage.make(Run(run.home, cast(Machine, Calls())), there)
    return _outcome(run, request, Completed())


def test_what_tasks_elsewhere_made_is_found_while_an_older_listing_is_believed(
    s3_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.s3.LISTING_SECONDS", 1000.0)
    home, call = replace(home_at(tmp_path), store=s3_address), Call(TextSettings("a"), {})
    for refresh in ([], ["letters"]):
        run = Run(home, refresh=refresh)
        request = letters.request(run, call)
        before = run.store.find("letters", request.key)
        assert (before is None) == (not refresh)
        found = made_elsewhere(run, request)
        assert before is None or found.manifest.created > before.created


@stage("pair", version=1)
def pair(work: Work, settings: TextSettings) -> str:
    """Write two files."""
    for name in ("a", "b"):
        (work.out / name).write_text(name + settings.text)
    return sha256_json(settings.text)


def test_an_artefact_takes_the_requests_that_are_counted_in_the_plan_for_many_documents(
    s3_address: str, s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """See `docs/scale.md`."""
    monkeypatch.setattr("storage.s3.LISTING_SECONDS", 1000.0)
    proxy, asked = Proxy(s3_endpoint), Counter[str]()

    def count(method: str, path: str) -> Answer:
        asked["LIST" if "list-type" in path else method] += 1
        return PASS

    lead_to(monkeypatch, proxy.endpoint)
    run = Run(replace(home_at(tmp_path), store=s3_address), cast(Machine, Calls()))
    pair(run, TextSettings("first"))
    proxy.decide = count
    pair(run, TextSettings("second"))
    proxy.close()
    assert asked == {"PUT": 3, "LIST": 1}
