"""Settings: later sources win, unknown names and impossible values are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.digest import sha256_json
from tasks.settings import Settings, SettingsError, load_settings, parse_assignments


def test_without_any_source_the_defaults_hold() -> None:
    assert load_settings() == Settings()


def test_an_option_wins_over_an_assignment_and_that_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[train]\nseed = 1\nminutes = 1\nmax_steps = 1\n[curate]\nsalt = "file"\n')
    settings = load_settings(path, ["train.minutes=2", "train.max_steps=2"], {"train.max_steps": 3})
    train = settings.train
    assert (train.seed, train.minutes, train.max_steps, settings.curate.salt) == (1, 2.0, 3, "file")


def test_toml_and_json_files_of_the_same_content_give_the_same_settings(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[tokenizer]\nkind = "bpe"\n[model]\nn_layer = 3\n')
    (tmp_path / "run.json").write_text('{"tokenizer": {"kind": "bpe"}, "model": {"n_layer": 3}}')
    settings = load_settings(tmp_path / "run.toml")
    assert settings == load_settings(str(tmp_path / "run.json"))
    assert settings.tokenizer.kind == "bpe" and settings.model.overrides == {"n_layer": 3}


def test_options_that_were_not_given_change_nothing() -> None:
    given = {"train.seed": None, "model.preset": "", "train.max_steps": 0, "generate.temperature": 0.0}
    settings = load_settings(options=given)
    assert settings.train == Settings().train and settings.model == Settings().model
    assert settings.generate.temperature == 0.0  # zero is a value


def test_fields_of_the_network_and_the_trainer_pass_through_as_overrides() -> None:
    settings = load_settings(None, ["model.n_layer=2", "model.preset=tiny", "train.lr=0.001", "train.seed=5"])
    assert settings.model.preset == "tiny" and settings.model.overrides == {"n_layer": 2}
    assert settings.train.seed == 5 and settings.train.overrides == {"lr": 0.001}


def test_equal_settings_digest_equally_however_their_numbers_were_written() -> None:
    written = [["train.minutes=3"], ["train.minutes=3.0"], ['train.minutes="3"'], ["train.minutes = 3e0"]]
    assert len({sha256_json(load_settings(None, items)) for items in written}) == 1


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("train.minuets", "train.minutes"),
        ("trian.minutes", "train.minutes"),
        ("model.n_layers", "model.n_layer"),
        ("curate.min_char", "curate.min_chars"),
        ("generate.topk", "generate.top_k"),
    ],
)
def test_a_mistyped_name_is_refused_with_the_one_that_was_meant(name: str, hint: str) -> None:
    with pytest.raises(SettingsError, match=f"unknown setting '{name}'; did you mean {hint}"):
        load_settings(None, [f"{name}=1"])


@pytest.mark.parametrize(
    "name", ["model.vocab_size", "train.overrides", "model.overrides", "zzz", "train", "", "train.", "curate.lr"]
)
def test_a_name_that_is_nobodys_to_set_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="unknown setting"):
        load_settings(None, [f"{name}=1"])


@pytest.mark.parametrize(
    "item",
    [
        "curate.validation_share=0",
        "curate.validation_share=1",
        "curate.validation_share=NaN",
        "curate.min_chars=many",
        "tokenizer.kind=word",
        "tokenizer.vocab_size=100",
        "train.minutes=-1",
        "train.minutes=0",
        "train.max_steps=1.5",
        "generate.max_new_tokens=0",
        "generate.temperature=-0.1",
        "generate.top_p=0",
        "generate.top_p=1.1",
        "generate.top_k=-1",
    ],
)
def test_an_impossible_value_is_refused_with_its_name(item: str) -> None:
    name, _, _ = item.partition("=")
    section, _, leaf = name.partition(".")
    with pytest.raises(SettingsError) as caught:
        load_settings(None, [item])
    assert section in str(caught.value)
    assert leaf in str(caught.value) or "training needs a budget" in str(caught.value)


def test_an_assignment_without_a_sign_is_refused_with_an_example() -> None:
    with pytest.raises(SettingsError, match=r"--set 'train\.lr': expected section\.name=value"):
        parse_assignments(["train.lr"])


@pytest.mark.parametrize(
    ("item", "value"),
    [("a.b=1", 1), ("a.b=true", True), ("a.b=x=y", "x=y"), ("a.b=[1, 2]", [1, 2]), ("a.b=", ""), (" a.b = hi ", "hi")],
)
def test_assigned_values_are_json_where_they_can_be_and_else_text(item: str, value: object) -> None:
    assert parse_assignments([item]) == {"a.b": value}


@pytest.mark.parametrize(("name", "kind"), [("run.toml", "TOML"), ("run.json", "JSON")])
def test_a_file_that_cannot_be_parsed_is_named(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / name).write_text("{ not = valid")
    with pytest.raises(SettingsError, match=rf"{name}: not valid {kind}"):
        load_settings(tmp_path / name)
