"""What a repair removed comes back with the next run, as it was."""

from __future__ import annotations

from pathlib import Path

from tiny_run import Ran, copy_of_store, run_whole

from flows.stages import stage_facts
from storage.store import open_store
from tasks.upkeep.verify import verify_home


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_damaged_segment_shard_manifest_checkpoint_and_name_are_made_again_as_they_were(
    tiny: Ran, tiny_source: Path, tmp_path: Path
) -> None:
    home = copy_of_store(tiny, tmp_path / "home")
    store = open_store(home.store)
    before = {(found.stage, found.key): found.digest for stage in store.stages() for found in store.manifests(stage)}
    (segment,), (shard,) = store.keys("extract"), store.keys("tokenise")
    (curated,), (trained,) = store.keys("curate"), store.keys("train")
    root = Path(home.store)
    damage(root / "extract" / segment / "pages.parquet")
    (root / "tokenise" / shard / "tokens.npy").unlink()
    (root / "curate" / curated / "manifest.json").write_text("{")
    damage(root / "train" / trained / "model.safetensors")
    (root / ".refs" / "corpus" / "default.json").write_text("")
    report = verify_home(home, open_store(home.store), stage_facts(), "default", mend=True)
    assert len([item for item in report["repaired"] if item["done"]]) == 5
    assert report["ok"]
    ran = run_whole(home, tiny_source)
    assert set(ran.computed()) == {"extract", "tokenise", "curate", "train"}
    after = {(found.stage, found.key): found.digest for stage in store.stages() for found in store.manifests(stage)}
    assert after == before
    assert verify_home(home, open_store(home.store), stage_facts(), "default")["ok"]
