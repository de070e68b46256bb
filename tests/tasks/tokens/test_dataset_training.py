"""A dataset as training takes it: its settings, what is read of it, and how many steps it is good for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dataset_samples import Built, Corpus, document

from model.data import IGNORE, Group, Order
from storage.errors import UserError
from tasks.core.settings import load_settings, parse_assignments
from tasks.tokens.dataset import DatasetIndexSettings
from tasks.tokens.index import groups_of, open_sequences
from tasks.tokens.packing import PACKINGS
from tasks.tokens.settings import DatasetSettings, MixSettings
from tasks.training.train import shard_folders, steps_of_tokens

T = 16

DOCUMENTS = [
    document(f"{number:02}", 3 + 7 * number % 50, "validation" if number % 5 == 4 else "train") for number in range(30)
]
GROUPS = {item.doc_id: "even" if int(item.doc_id) % 2 == 0 else "odd" for item in DOCUMENTS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


def build(folder: Path, packing: str, **more: Any) -> Built:
    return Corpus(folder, DOCUMENTS, [DOCUMENTS[:11], DOCUMENTS[11:]], groups=GROUPS).build(
        DatasetIndexSettings(T, packing, **more)
    )


def source(built: Built, split: str, limit: int | None = None) -> Any:
    work = SimpleNamespace(store=built.corpus.store, folder=built.corpus.store.folder)
    dataset = built.manifest.ref
    return open_sequences(work.folder(dataset), shard_folders(work, dataset), split, T, limit)  # type: ignore[arg-type]


@pytest.mark.parametrize("packing", PACKINGS)
def test_training_reads_every_id_of_its_documents(folder: Path, packing: str) -> None:
    built = build(folder, packing)
    found = source(built, "train")
    inputs, labels, *_ = found.batch(np.arange(len(found)))
    read = Counter(inputs.ravel().tolist())
    ids = Counter(value for item in DOCUMENTS if item.split == "train" for value in item.ids.tolist())
    padded = built.record["splits"]["train"]["padded"]
    assert read - ids == Counter({0: padded})
    assert (labels != IGNORE).sum() == built.manifest.counts["train_tokens"]


def test_packed_documents_come_with_their_bounds(folder: Path) -> None:
    found = source(build(folder, "pack"), "train")
    batch = found.batch(np.arange(len(found)))
    assert batch.documents is not None
    assert any(len(row) > 1 for row in batch.documents)
    assert all(sum(row) <= T for row in batch.documents)


@pytest.mark.parametrize("packing", ["chunk", "concat"])
def test_other_sequences_come_without_bounds(folder: Path, packing: str) -> None:
    found = source(build(folder, packing), "train")
    assert found.batch(np.arange(len(found))).documents is None


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_sample_of_the_sequences_is_some_of_them(folder: Path, packing: str) -> None:
    built = build(folder, packing)
    whole, some = source(built, "validation"), source(built, "validation", 3)
    rows = [row.tolist() for row in whole.batch(np.arange(len(whole)))[0]]
    sample = [row.tolist() for row in some.batch(np.arange(3))[0]]
    assert len(some) == 3
    places = [rows.index(row) for row in sample]
    assert places == sorted(set(places))


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_labels_of_some_pieces_and_of_the_others_are_those_of_all(folder: Path, packing: str) -> None:
    built = build(folder, packing)
    index = built.index("validation")
    work = SimpleNamespace(store=built.corpus.store, folder=built.corpus.store.folder)
    shards = shard_folders(work, built.manifest.ref)  # type: ignore[arg-type]

    def labels(counted: np.ndarray | None) -> Counter[int]:
        found = open_sequences(built.folder, shards, "validation", T, None, counted)
        batch = found.batch(np.arange(len(found)))
        return Counter(batch.labels[batch.labels != IGNORE].tolist())

    some = np.arange(len(index.shard)) % 3 == 1
    sides = [labels(some), labels(~some)]
    assert sum(sides, Counter()) == labels(None)
    assert [side.total() for side in sides] == [index.piece_labels[some].sum(), index.piece_labels[~some].sum()]


def test_steps_for_tokens_follow_the_order_of_a_mixed_training(folder: Path) -> None:
    built = build(folder, "pack", mix=MixSettings(by="kind", epochs="even=1.5,odd=0.4"))
    groups, labels = groups_of(built.folder), built.index().labels
    assert any(group.reads % group.count for group in groups)
    order = Order(groups, 7)
    plan = {"batch_size": 2, "grad_accum": 1, "seed": 7}
    in_all = int(labels[order.at(np.arange(order.epoch_size))].sum())
    for tokens in (1, 20, in_all, in_all + 1, 3 * in_all + 11):
        steps = steps_of_tokens(tokens, plan, labels, groups, most=10**6)
        read = [int(labels[order.at(np.arange(2 * n))].sum()) for n in (steps - 1, steps)]
        assert read[0] < tokens <= read[1]


def test_steps_for_very_many_tokens_are_counted_by_whole_epochs() -> None:
    plan = {"batch_size": 1, "grad_accum": 1, "seed": 7}
    group = Group(first=0, count=3, reads=6)
    assert steps_of_tokens(24 * 10**12, plan, np.array([3, 4, 5]), [group], most=10**13) == 6 * 10**12


def test_steps_for_very_many_tokens_are_counted_up_to_the_most_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.training.train.COUNTED_AT_ONCE", 8)
    plan = {"batch_size": 2, "grad_accum": 2, "seed": 7}
    group = Group(first=0, count=2, reads=3)  # one and a half passes an epoch: no epoch is a unit
    labels, looked_at = np.array([3, 4]), []
    at = Order.at

    def counted(self: Order, positions: Any) -> Any:
        looked_at.append(len(positions))
        return at(self, positions)

    monkeypatch.setattr(Order, "at", counted)
    assert steps_of_tokens(10**15, plan, labels, [group], most=25) == 25
    assert sum(looked_at) <= 25 * 4 + 8
    assert steps_of_tokens(10, plan, labels, [group], most=25) == 1
    assert steps_of_tokens(10**15, plan, labels, [Group(0, 2, 2)], most=25) == 25


# settings


def test_the_settings_of_a_run_say_how_documents_are_packed() -> None:
    found = load_settings(None, parse_assignments(["dataset.packing=concat", "dataset.drop_last=true"]))
    settings = DatasetIndexSettings.of(T, found.dataset, found.mix)
    assert settings == DatasetIndexSettings(T, "concat", 0, True, None)


def test_a_mix_is_one_if_it_names_groups() -> None:
    assert DatasetIndexSettings.of(T, DatasetSettings(), MixSettings()).mix is None
    assert DatasetIndexSettings.of(T, DatasetSettings(), MixSettings(by="kind")).mix == MixSettings(by="kind")


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["dataset.packing=sort"], "dataset.packing is 'sort', expected chunk, concat or pack"),
        (["dataset.packing=pack", "dataset.stride=4"], "dataset.stride is 4, but only chunks overlap"),
        (["dataset.packing=concat", "dataset.stride=4"], "dataset.stride is 4, but only chunks overlap"),
        (["dataset.drop_last=true"], "dataset.drop_last goes with dataset.packing=concat, found chunk"),
        (["dataset.packing=pack", "dataset.drop_last=true"], "dataset.drop_last goes with dataset.packing=concat"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(items: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        load_settings(None, parse_assignments(items))
    assert str(caught.value).startswith(message)
