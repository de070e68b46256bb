"""The home: one folder, absolute, chosen by argument, environment or default."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from storage.errors import UserError
from storage.home import Home


@pytest.fixture(autouse=True)
def bare_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHEEPFOLD_HOME", "SHEEPFOLD_STORE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def test_the_default_home_is_a_hidden_folder_here_and_everything_lies_in_it(tmp_path: Path) -> None:
    home = Home.from_environment()
    assert home.path == tmp_path / ".sheepfold"
    assert home.store == str(home.path / "store")
    assert home.tracking_uri == f"sqlite:///{home.path}/mlflow.db"
    for place in (home.mlflow_artifacts, home.prefect, home.hash_memo, home.reports):
        assert place.parent == home.path


def test_an_argument_comes_before_the_environment_and_both_are_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHEEPFOLD_HOME", "from/environment")
    assert Home.from_environment().path == tmp_path / "from" / "environment"
    assert Home.from_environment("given").path == tmp_path / "given"
    monkeypatch.chdir("/")
    assert Home.from_environment(tmp_path / "given").path == tmp_path / "given"


def test_store_and_tracking_can_lie_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEEPFOLD_STORE", "shared/store")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    home = Home.from_environment("home")
    assert home.path == tmp_path / "home"
    assert home.store == str(tmp_path / "shared" / "store")
    assert home.tracking_uri == "http://tracking:5000"


def test_a_store_that_is_an_address_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEEPFOLD_STORE", "s3://bucket/store")
    assert Home.from_environment().store == "s3://bucket/store"


def test_a_tilde_means_the_persons_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    monkeypatch.setenv("SHEEPFOLD_STORE", "~/store")
    home = Home.from_environment("~/fold")
    assert home.path == tmp_path / "person" / "fold"
    assert home.store == str(tmp_path / "person" / "store")


def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    unset = Home.from_environment()
    for name in ("SHEEPFOLD_HOME", "SHEEPFOLD_STORE", "MLFLOW_TRACKING_URI"):
        monkeypatch.setenv(name, "")
    assert Home.from_environment("") == unset


def test_naming_a_home_makes_no_folder_and_creating_it_twice_is_harmless() -> None:
    home = Home.from_environment("a/b")
    assert not home.path.exists()
    assert home.create().create() is home
    assert home.path.is_dir()


@pytest.mark.parametrize("name", ["what?", "a%20b", "a%3fb", "caf\udce9"])
def test_a_home_whose_path_means_something_else_in_a_database_address_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="choose another folder"):
        Home.from_environment(f"top/{name}/home")


@pytest.mark.parametrize("name", ["a b", "100%", "ünïcode", "a#b", "a&b=c+d@e:f;g", "it's", "[1]*{$x}"])
def test_the_database_lies_in_the_home_whatever_else_it_is_called(name: str) -> None:
    home = Home.from_environment(name)
    assert make_url(home.tracking_uri).database == f"{home.path}/mlflow.db"


@pytest.mark.parametrize("name", ["file", "file/x", "file/x/y"])
def test_a_home_that_is_or_lies_in_a_file_is_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(UserError, match=rf"the home {tmp_path}/{name} cannot be created .*--home or SHEEPFOLD_HOME"):
        Home.from_environment(name).create()


def test_a_home_that_may_not_be_made_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match="the home /proc/sheepfold cannot be created"):
        Home.from_environment("/proc/sheepfold").create()


def test_a_home_that_may_not_be_written_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # nothing is read-only for root
    with pytest.raises(UserError, match=f"the home {tmp_path} cannot be written"):
        Home.from_environment(tmp_path).create()


PLANTED = "hunter2-Xyzzy"


@pytest.mark.parametrize(
    ("variable", "address"),
    [
        ("MLFLOW_TRACKING_URI", f"http://shepherd:{PLANTED}@mlflow.example:5000"),
        ("MLFLOW_TRACKING_URI", f"https://{PLANTED}@mlflow.example"),
        ("SHEEPFOLD_STORE", f"s3://key:{PLANTED}@bucket/store"),
        ("SHEEPFOLD_STORE", f"s3://bucket/store?secret_key={PLANTED}"),
    ],
)
def test_an_address_with_a_password_is_refused_without_showing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, address: str
) -> None:
    monkeypatch.setenv(variable, address)
    with pytest.raises(UserError, match=f"{variable} .* holds a password") as caught:
        Home.from_environment(tmp_path)
    assert PLANTED not in str(caught.value)


@pytest.mark.parametrize("password", [PLANTED, f"{PLANTED}@{PLANTED}", ""])
def test_the_password_of_a_database_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"postgresql://shepherd:{password}@localhost:5432/mlflow")
    home = Home.from_environment(tmp_path)
    assert home.shown_tracking_uri == "postgresql://shepherd:***@localhost:5432/mlflow"


def test_an_address_without_a_password_is_shown_as_it_is(tmp_path: Path) -> None:
    home = Home(tmp_path, str(tmp_path), "http://127.0.0.1:5000/a:b@c")
    assert home.shown_tracking_uri == home.tracking_uri
