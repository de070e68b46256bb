"""Settings: later sources win, unknown names and impossible values are refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage.digest import sha256_json
from storage.errors import UserError
from tasks.core.settings import (
    SECTIONS,
    Settings,
    all_settings,
    load_settings,
    parse_assignments,
    setting,
    storable,
)
from tasks.readers.records import Limits


def test_without_any_source_the_defaults_hold() -> None:
    assert load_settings() == Settings()


def test_an_option_wins_over_an_assignment_and_that_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[train]\nseed = 1\nmax_epochs = 1\nmax_steps = 1\n[curate]\nsalt = "file"\n')
    settings = load_settings(path, {"train.max_epochs": 2, "train.max_steps": 2}, {"train.max_steps": 3})
    train = settings.train
    assert (train.seed, train.max_epochs, train.max_steps, settings.curate.salt) == (1, 2.0, 3, "file")


@pytest.mark.parametrize("asked", ["train.minutes", "train.max_steps", "train.max_tokens"])
@pytest.mark.parametrize("before", ["minutes", "max_steps", "max_tokens"])
def test_a_budget_takes_the_place_of_the_one_of_a_lower_source(asked: str, before: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f"[train]\n{before} = 500\n")
    alone = load_settings(None, parse_assignments([f"{asked}=30"])).train
    assert load_settings(path, parse_assignments([f"{asked}=30"])).train == alone
    assert load_settings(path, None, {asked: 30}).train == alone
    assert load_settings(None, parse_assignments([f"train.{before}=500"]), {asked: 30}).train == alone


def test_a_budget_of_a_lower_source_holds_where_no_other_is_given(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[train]\nmax_steps = 500\n")
    assert load_settings(path, parse_assignments(["train.seed=2"]), {"train.minutes": None}).train.max_steps == 500
    cleared = load_settings(path, parse_assignments(["train.max_steps=0"])).train
    assert (cleared.max_steps, cleared.minutes) == (0, Settings().train.minutes)


def test_two_budgets_in_one_source_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[train]\nminutes = 30\nmax_steps = 500\n")
    said = r"train\.minutes is 30 and train\.max_steps is 500, but a training has one budget; leave out all but one"
    with pytest.raises(UserError, match=rf"run\.toml: {said}"):
        load_settings(path)
    with pytest.raises(UserError, match=f"--set: {said}"):
        load_settings(None, parse_assignments(["train.minutes=30", "train.max_steps=500"]))
    with pytest.raises(UserError, match=f"options: {said}"):
        load_settings(None, None, {"train.minutes": 30, "train.max_steps": 500})


def test_toml_and_json_files_of_the_same_content_give_the_same_settings(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[tokenizer]\nkind = "bpe"\n[model]\nn_layer = 3\n')
    (tmp_path / "run.json").write_text('{"tokenizer": {"kind": "bpe"}, "model": {"n_layer": 3}}')
    settings = load_settings(tmp_path / "run.toml")
    assert settings == load_settings(str(tmp_path / "run.json"))
    assert settings.tokenizer.kind == "bpe" and settings.model.overrides == {"n_layer": 3}


def test_an_option_that_was_not_given_is_none() -> None:
    assert load_settings(options={"train.seed": None, "model.preset": None}) == Settings()


@pytest.mark.parametrize(
    ("name", "in_file"),
    [
        ("generate.temperature", 0.2),
        ("generate.max_new_tokens", 500),
        ("generate.seed", 7),
        ("curate.salt", "other"),
        ("mix.by", "kind"),
        ("tokenizer.bos", False),
    ],
)
def test_an_option_wins_over_the_file_even_with_the_default_value(tmp_path: Path, name: str, in_file: object) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({name: in_file}))
    usual = setting(name).default
    assert load_settings(path) != Settings()
    assert load_settings(path, {name: usual}) == load_settings(path, None, {name: usual}) == Settings()


def test_the_environment_stands_between_the_file_and_the_settings_of_a_flow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[train]\nminutes = 3\nlr = 0.1\nseed = 1\n")
    monkeypatch.setenv("SHEEPFOLD_TRAIN__MAX_STEPS", "10")
    monkeypatch.setenv("SHEEPFOLD_TRAIN__LR", "0.2")
    monkeypatch.setenv("SHEEPFOLD_GENERATE__STOP", '["end"]')
    settings = load_settings(path, {"train.lr": 0.3})
    assert settings.train == load_settings(None, {"train.max_steps": 10, "train.lr": 0.3, "train.seed": 1}).train
    assert settings.generate.stop == ("end",)
    monkeypatch.setenv("SHEEPFOLD_TRIAN__LR", "0.2")
    with pytest.raises(UserError, match=r"unknown setting 'trian\.lr'; did you mean train\.lr"):
        load_settings()


def test_fields_of_the_network_and_the_trainer_pass_through_as_overrides() -> None:
    settings = load_settings(None, {"model": {"n_layer": 2, "preset": "tiny"}, "train.lr": 0.001, "train.seed": 5})
    assert settings.model.preset == "tiny" and settings.model.overrides == {"n_layer": 2}
    assert settings.train.seed == 5 and settings.train.overrides == {"lr": 0.001}


def test_a_setting_beside_a_preset_wins_over_its_recipe_wherever_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[train]\nlr = 0.01\n[tokenizer]\nkind = "char"\n')
    settings = load_settings(tmp_path / "run.toml", {"generate.temperature": 0.5}, {"model.preset": "sheepop"})
    assert settings.train.overrides["lr"] == 0.01 and settings.train.overrides["betas"] == (0.9, 0.999)
    assert settings.tokenizer.kind == "char"
    assert (settings.generate.temperature, settings.generate.top_p) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("preset", "given"),
    [
        ("sheepop", {"train.schedule": "constant"}),
        ("sheepop", {"train.optimizer": "adam"}),
        ("sheepop", {"train.weight_decay": 0}),
        ("light_llm", {"train.schedule": "noam"}),
        ("light_llm", {"tokenizer.kind": "ascii"}),
        ("fundamentals", {"train.schedule": "cosine"}),
        ("fundamentals", {"train.warmup_ratio": 0.1}),
    ],
)
def test_another_choice_than_the_recipes_takes_the_details_of_the_recipes_choice_with_it(
    preset: str, given: dict[str, object]
) -> None:
    settings = load_settings(None, {"model.preset": preset, **given})
    alone = load_settings(None, {"model.preset": preset})
    assert settings.train.overrides != alone.train.overrides or settings.tokenizer != alone.tokenizer
    ((name, value),) = given.items()
    section, _, leaf = name.partition(".")
    assert (settings.train.overrides.get(leaf) if section == "train" else settings.tokenizer.kind) == value


def test_what_a_model_records_of_its_sampling_stands_between_the_given_and_the_defaults() -> None:
    found = load_settings(None, {"generate.top_p": 0.5}).generate_with({"temperature": 0.1, "top_p": 1.0})
    assert (found.temperature, found.top_p, found.max_new_tokens) == (0.1, 0.5, Settings().generate.max_new_tokens)


def test_the_recipe_of_a_preset_in_the_configuration_gives_way_to_what_another_model_records() -> None:
    found = load_settings(None, {"model.preset": "llama_toy"})
    assert found.generate.temperature == 0.0
    assert found.generate_with({"temperature": 0.3}).temperature == 0.3


def test_equal_settings_digest_equally_however_their_numbers_were_written() -> None:
    written = [["train.minutes=3"], ["train.minutes=3.0"], ['train.minutes="3"'], ["train.minutes = 3e0"]]
    assert len({sha256_json(load_settings(None, parse_assignments(items)).train) for items in written}) == 1


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("train.minuets", "train.minutes"),
        ("trian.minutes", "train.minutes"),
        ("model.n_layers", "model.n_layer"),
        ("policy.min_char", "policy.min_chars"),
        ("curate.min_chars", "policy.min_chars"),
        ("curate.paragraph", "curate.paragraphs"),
        ("refine.redacted", "refine.redact"),
        ("generate.topk", "generate.top_k"),
    ],
)
def test_a_mistyped_name_is_refused_with_the_one_that_was_meant(name: str, hint: str) -> None:
    with pytest.raises(UserError, match=f"unknown setting '{name}'; did you mean {hint}"):
        load_settings(None, parse_assignments([f"{name}=1"]))


@pytest.mark.parametrize(
    "name", ["model.vocab_size", "train.overrides", "model.overrides", "zzz", "train", "", "train.", "curate.lr"]
)
def test_a_name_that_is_nobodys_to_set_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="unknown setting"):
        load_settings(None, parse_assignments([f"{name}=1"]))


@pytest.mark.parametrize(
    "item",
    [
        "limits.page_seconds=0",
        "limits.document_seconds=-1",
        "limits.memory_bytes=1000",
        "limits.memory_bytes=many",
        "curate.validation_share=0",
        "curate.validation_share=1",
        "curate.validation_share=NaN",
        "policy.min_chars=many",
        "curate.near_duplicates=merge",
        "curate.paragraphs=drop",
        "curate.max_containment=0",
        "curate.max_containment=1.1",
        "curate.max_evaluation_share=0",
        "dedup.threshold=0.2",
        "dedup.threshold=1.01",
        "dedup.max_bucket=1",
        "refine.redact=email,names",
        "policy.preset=strict",
        "policy.min_words=-1",
        "tokenizer.kind=words",
        "tokenizer.vocab_size=100",
        "train.minutes=-1",
        "train.minutes=0",
        "train.max_steps=1.5",
        "generate.max_new_tokens=0",
        "generate.temperature=-0.1",
        "generate.top_p=0",
        "generate.top_p=1.1",
        "generate.top_k=-1",
        "evaluate.stride=-1",
        "evaluate.ngram_order=9",
        "evaluate.ngram_tokens=0",
    ],
)
def test_an_impossible_value_is_refused_with_its_name(item: str) -> None:
    name, _, _ = item.partition("=")
    section, _, leaf = name.partition(".")
    with pytest.raises(UserError) as caught:
        load_settings(None, parse_assignments([item]))
    assert section in str(caught.value)
    assert leaf in str(caught.value) or "training needs a budget" in str(caught.value)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["curate.validation_share=2"], "curate.validation_share is 2, expected a number above 0 and below 1"),
        (["dataset.stride=-3"], "dataset.stride is -3, expected 0 or more"),
        (
            ["dataset.stride=33", "model.max_seq_len=32"],
            "dataset.stride is 33, expected at most the context of 32 ids (model.max_seq_len), or ids would be skipped",
        ),
        (
            ["evaluate.stride=8"],
            "evaluate.stride is 8, but the context is left open: give model.max_seq_len or a preset",
        ),
        (
            ["evaluate.stride=33", "model.max_seq_len=32"],
            "evaluate.stride is 33, expected at most the context of 32 ids",
        ),
        (
            ["tokenizer.kind=char", "tokenizer.vocab_size=4"],
            "tokenizer.vocab_size is 4, expected 5 or more (4 ids are special), or 0 for all characters",
        ),
        (
            ["tokenizer.kind=char", "tokenizer.vocab_size=-3"],
            "tokenizer.vocab_size is -3, expected 5 or more (4 ids are special), or 0 for all characters",
        ),
        (["tokenizer.fit_bytes=-1"], "tokenizer.fit_bytes is -1, expected 1 or more"),
        (["tokenizer.vocab_size=1e9"], "tokenizer.vocab_size is 1,000,000,000, expected less than 16,777,216"),
        ([f"tokenizer.vocab_size={10**20}"], "tokenizer.vocab_size is 100,000,000,000,000,000,000, expected less than"),
        ([f"tokenizer.reserved={10**20}"], "tokenizer.reserved is 100,000,000,000,000,000,000, expected less than"),
        ([f"documents.max_row_bytes={10**20}"], "documents.max_row_bytes is 100000000000000000000, expected 1 to"),
        (["mix.by=null"], 'mix.by is null, expected "", kind, language'),
        (["tokenizer.vocab_size=null"], "tokenizer.vocab_size is null, expected a whole number; leave it out"),
        (["extract.ocr_dpi=-4"], "extract.ocr_dpi is -4, expected 1 or more"),
        (["extract.ocr_max_pixels=0"], "extract.ocr_max_pixels is 0, expected 1 or more"),
        (["extract.max_pages=0"], "extract.max_pages is 0, expected 1 or more"),
        (["extract.max_file_bytes=-1"], "extract.max_file_bytes is -1, expected 1 or more"),
        (["train.seed=9223372036854775808"], "train.seed is 9223372036854775808, expected 0 to 9223372036854775807"),
        (["train.seed=-1"], "train.seed is -1, expected 0 to 9223372036854775807"),
        (["generate.seed=9223372036854775808"], "generate.seed is 9223372036854775808, expected 0 to"),
        (
            ["refine.redact=email, names,address"],
            "refine.redact names address, names, expected some of email, ip, phone, iban, card, secret",
        ),
        (["curate.near_duplicates=merge"], "curate.near_duplicates is 'merge', expected drop or keep"),
        (["dedup.threshold=0.2"], "dedup.threshold is 0.2, expected 0.3 to 1"),
        (["policy.min_chars=true"], "policy.min_chars is true, expected a whole number"),
        (["train.max_epochs=0"], "train.max_epochs is 0, expected a number above 0"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_setting_that_cannot_work_is_refused_before_anything_runs(items: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        load_settings(None, parse_assignments(items))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "item",
    [
        "dataset.stride=32",
        "tokenizer.vocab_size=5",
        "tokenizer.vocab_size=0",
        "tokenizer.fit_bytes=1",
        "extract.max_pages=1",
        "curate.max_containment=1",
        "dedup.threshold=1",
        "dedup.max_bucket=2",
        "train.seed=9223372036854775807",
        "generate.seed=9223372036854775807",
    ],
)
def test_the_last_value_that_works_is_taken(item: str) -> None:
    section, leaf = item.partition("=")[0].split(".")
    settings = load_settings(None, parse_assignments(["tokenizer.kind=char", "model.max_seq_len=32", item]))
    assert getattr(getattr(settings, section), leaf) == int(item.partition("=")[2])


@pytest.mark.parametrize("value", ["true", "false"])
def test_a_mark_of_the_policy_that_is_the_presets_by_default_can_be_switched(value: str) -> None:
    policy = load_settings(None, parse_assignments([f"policy.drop_minified={value}"])).policy
    assert policy.drop_minified is (value == "true")


@pytest.mark.parametrize(
    ("given", "kinds"),
    [("", ()), ("email", ("email",)), (" secret, email,,email ", ("email", "secret"))],
)
def test_kinds_to_redact_are_each_named_once_in_order_whatever_stands_between_them(
    given: str, kinds: tuple[str, ...]
) -> None:
    assert load_settings(None, parse_assignments([f"refine.redact={given}"])).refine.kinds == kinds


def test_passwords_are_the_lines_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "words"
    path.write_bytes(b"\xef\xbb\xbfone\n\n two, three \none\n7\xc3\xa4")
    assert load_settings(None, {"passwords.file": str(path)}).passwords.read() == ("one", " two, three ", "7ä")
    assert load_settings().passwords.read() == ()
    monkeypatch.setenv("SHEEPFOLD_PASSWORDS_FILE", str(path))
    assert len(load_settings().passwords.read()) == 3


@pytest.mark.parametrize("content", [None, b"\xffsesame-open-7391"])
def test_a_file_of_passwords_that_cannot_be_read_is_named_and_nothing_of_it_shown(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "words"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"words \(passwords\.file\) cannot be read: .*one password per line") as found:
        load_settings(None, {"passwords.file": str(path)}).passwords.read()
    assert "sesame" not in str(found.value)


@pytest.mark.parametrize("name", ["passwords.pdf", "passwords.words", "passwords"])
def test_passwords_as_a_setting_are_refused_before_a_flow_could_keep_them(name: str) -> None:
    for read in (lambda settings: load_settings(None, settings), storable):
        with pytest.raises(UserError, match=r"plain text in Prefect's database.*passwords\.file") as found:
            read({name: "sesame-open-7391"})
        assert "sesame" not in str(found.value)


def test_settings_for_a_flow_hold_no_relative_path_and_are_else_as_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"train.lr": 0.01, "passwords.file": "words", "curate": {"evaluation_sets": "a b"}}
    kept = {"train.lr": 0.01, "passwords.file": str(tmp_path / "words"), "curate.evaluation_sets": "a b"}
    assert storable(given) == kept
    with pytest.raises(UserError, match="unknown setting"):
        storable({"pasword.file": "x"})


def test_limits_of_extraction_are_settings() -> None:
    given = ["limits.page_seconds=7.5", "limits.document_seconds=90", "limits.memory_bytes=100000000"]
    assert load_settings(None, parse_assignments(given)).limits == Limits(7.5, 90, 100_000_000)


def test_an_assignment_without_a_sign_is_refused_with_an_example() -> None:
    with pytest.raises(UserError, match=r"--set 'train\.lr': expected section\.name=value"):
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
    with pytest.raises(UserError, match=rf"{name}: not valid {kind}"):
        load_settings(tmp_path / name)


# first digits of the sha256 of each section's defaults: keys of stages hold them, so a change computes everything anew
KEYS = {
    "sources": "89c43b5979fb3c38",
    "documents": "88c85028d7ad2d80",
    "extract": "5e4df00d94b73416",
    "passwords": "e4d2d0dcb44dfe34",
    "limits": "d2642d493b4525ac",
    "normalise": "e92f2f89d8a8ed70",
    "dedup": "1c873a993be227ff",
    "classifier": "c1d34606eb6f6867",
    "policy": "a989d6dae91cddd3",
    "curate": "4163c541c3bbacec",
    "refine": "4d0ec362c97645b0",
    "tokenizer": "d9c782bc205bb595",
    "dataset": "8d70e8752594ce06",
    "mix": "7aa22c9868e2dd31",
    "chat": "8716d6154bf312ab",
    "model": "c516c48bd0aa3a38",
    "train": "4217de8c69a1a288",
    "execution": "cb1a03730ece1670",
    "evaluate": "cc7757b92f702002",
    "gates": "622160a0c3ce65e7",
    "generate": "35bacf218e8a5261",
}


@pytest.mark.parametrize("section", KEYS)
def test_the_defaults_of_a_section_have_the_key_they_always_had(section: str) -> None:
    assert sha256_json(getattr(Settings(), section))[:16] == KEYS[section]


def test_every_setting_has_a_meaning() -> None:
    assert set(KEYS) == set(SECTIONS)
    assert all(info.description and info.description[-1] in ".`" for info in all_settings().values())


def test_settings_of_muon_hold_where_the_optimizer_is_proposed() -> None:
    given = ["train.muon_lr=0.03"]
    assert load_settings(None, parse_assignments(given)).train.overrides == {"muon_lr": 0.03}
    with pytest.raises(UserError, match=r"muon_lr=0\.03 has no effect"):
        load_settings(None, parse_assignments([*given, "model.preset=modern-1m"]))
