"""A run keeps the report of what was computed; a plan says the same beforehand and computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stage_samples import Calls, TextSettings, capitals, joined, letters

from storage.home import Home
from storage.manifest import ArtifactRef, RefSet
from tasks.core.run import FIRST_GUESS, Run, StageReport
from tasks.core.stage import Call, Stage, stage


def new_run(home: Home, **options: object) -> Run:
    return Run(home, Calls(), **options)  # type: ignore[arg-type]


def planner(home: Home, **options: object) -> Run:
    return Run(home, plan=True, **options)  # type: ignore[arg-type]


def wire(run: Run, texts: str, shout: str = "a") -> ArtifactRef:
    """letters for each text -> capitals of each -> joined."""
    made = letters.map(run, [Call(TextSettings(text), {}, units=1) for text in texts])
    raised = capitals.map(run, [Call(TextSettings(shout), {"source": ref}, units=2) for ref in made])
    waiting = [ref for ref in raised if not ref.made]
    parts = RefSet(tuple(waiting[:1]), "") if waiting else RefSet(tuple(raised), texts.upper())
    return joined(run, None, parts=parts, first=letters(run, TextSettings("first")))


def lines(run: Run) -> dict[str, StageReport]:
    return run.reports


def seen_by(run: Run) -> list[str]:
    machine = run.machine
    assert isinstance(machine, Calls)
    return machine.seen


def figures(run: Run) -> dict[str, tuple[bool, int, int]]:
    return {name: (report.cached, report.computed, report.reused) for name, report in lines(run).items()}


def tree(home: Home) -> Iterator[tuple[str, bytes | None]]:
    for path in sorted(home.path.rglob("*")):
        yield str(path), path.read_bytes() if path.is_file() else None


def run(home: Home, texts: str, **options: str) -> Run:
    found = new_run(home)
    wire(found, texts, **options)
    return found


def test_a_run_reports_what_it_computed_and_the_next_what_it_reused(home: Home) -> None:
    assert figures(run(home, "xyz")) == {
        "letters": (False, 4, 0),
        "capitals": (False, 6, 0),
        "joined": (False, 1, 0),
    }
    second = run(home, "xyz")
    assert figures(second) == {"letters": (True, 0, 4), "capitals": (True, 0, 6), "joined": (True, 0, 1)}
    assert seen_by(second) == []


def test_a_run_after_a_small_change_computes_only_what_changed(home: Home) -> None:
    run(home, "xyz")
    session = run(home, "xyzw")
    assert seen_by(session) == ["w", "W", "firstXYZW"]
    assert figures(session) == {"letters": (False, 1, 4), "capitals": (False, 2, 6), "joined": (False, 1, 0)}


def test_artefacts_of_many_requests_come_in_the_order_of_the_requests(home: Home) -> None:
    run(home, "bd")
    session = new_run(home)
    refs = letters.map(session, [Call(TextSettings(text), {}, 1) for text in "abcde"])
    texts = [(session.store.folder(ref) / "text").read_text() for ref in refs]
    assert texts == list("abcde")


def test_rows_of_a_report_count_cached_artefacts_too(home: Home) -> None:
    assert lines(run(home, "xyz"))["letters"].rows == 3 + len("first")
    assert lines(run(home, "xyzw"))["letters"].rows == 4 + len("first")


def test_a_plan_computes_nothing_and_writes_nothing(home: Home) -> None:
    run(home, "xy")
    before = list(tree(home))
    plan = planner(home)
    wire(plan, "xyz")
    assert list(tree(home)) == before
    fresh = planner(Home.from_environment(home.path / "never"))
    wire(fresh, "xyz")
    assert not (home.path / "never").exists()


def test_a_plan_of_a_finished_run_says_its_keys_and_that_all_is_cached(home: Home) -> None:
    run(home, "xyz")
    plan, session = planner(home), new_run(home)
    assert wire(plan, "xyz") == wire(session, "xyz")
    assert figures(plan) == figures(session)
    assert {name: report.key for name, report in lines(plan).items()} == {
        name: report.key for name, report in lines(session).items()
    }


def test_a_plan_says_the_key_of_what_is_missing_where_its_inputs_are_there(home: Home) -> None:
    run(home, "xyz")
    changed = TextSettings("something else")
    plan, session = planner(home), new_run(home)
    assert not letters(plan, changed).made
    made = letters(session, changed)
    assert lines(plan)["letters"].key == lines(session)["letters"].key == made.key


def test_a_plan_counts_what_the_following_run_computes(home: Home) -> None:
    run(home, "xyz")
    plan = planner(home)
    assert not wire(plan, "xyzw").made
    planned = {name: computed for name, (_, computed, _) in figures(plan).items()}
    assert planned == {name: computed for name, (_, computed, _) in figures(run(home, "xyzw")).items()}


def reason(home: Home, requested: Stage, settings: object, **inputs: ArtifactRef) -> str:
    plan = planner(home)
    requested(plan, settings, **inputs)
    return lines(plan)[requested.name].reason


def test_a_plan_says_why_something_is_not_cached(home: Home) -> None:
    assert reason(home, letters, TextSettings("x")) == "never computed"
    session = new_run(home)
    x, y = (letters(session, TextSettings(text)) for text in "xy")
    capitals(session, TextSettings("a"), source=x)
    assert reason(home, letters, TextSettings("x")) == ""
    assert reason(home, letters, TextSettings("z")) == "changed setting: text"
    assert reason(home, capitals, TextSettings("a"), source=y) == "changed input: source"
    newer = stage("letters", version=2)(letters.function)
    assert reason(home, newer, TextSettings("x")) == "stage version 1 -> 2"


def test_a_plan_copes_with_artefacts_whose_inputs_had_other_names(home: Home) -> None:
    session = new_run(home)
    x = letters(session, TextSettings("x"))
    capitals(session, TextSettings("a"), source=x)

    def renamed(work: object, settings: object, *, original: ArtifactRef) -> str:
        raise NotImplementedError

    assert reason(home, stage("capitals", version=1)(renamed), TextSettings("a"), original=x) == (
        "changed input: original"
    )


def test_a_plan_says_what_a_stage_waits_for(home: Home) -> None:
    plan = planner(home)
    result = wire(plan, "x")
    assert not result.made and result.stage == "joined"
    assert lines(plan)["capitals"].reason == "waits for letters"
    assert lines(plan)["joined"].reason == "waits for capitals"


def test_a_refresh_computes_each_artefact_of_the_stage_once_and_what_follows_from_it_not_at_all(home: Home) -> None:
    run(home, "xy")
    plan = planner(home, refresh=["letters"])
    wire(plan, "xy")
    assert figures(plan)["letters"] == (False, 3, 0)
    assert lines(plan)["letters"].reason == "refresh asked for"
    session = new_run(home, refresh=["letters"])
    wire(session, "xy")
    wire(session, "xy")
    assert seen_by(session) == ["x", "y", "first"]  # the same content again: nothing downstream changes
    assert figures(session)["capitals"] == (True, 0, 8)


def test_a_plan_notes_code_that_changed_since_the_artefacts_were_made(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(home, "x")
    quiet = planner(home)
    wire(quiet, "x")
    assert quiet.notes == []
    monkeypatch.setattr(Stage, "code", "other code")
    plan = planner(home)
    wire(plan, "x")
    wire(plan, "x")
    assert [note.split(" changed")[0] for note in plan.notes] == [
        "the code of stage letters",
        "the code of stage capitals",
        "the code of stage joined",
    ]
    assert figures(plan)["letters"][0]  # noted, but never recomputed behind the person's back


def test_a_plan_estimates_by_what_was_told_then_by_what_was_measured_then_by_a_guess(home: Home) -> None:
    plan = planner(home)
    letters(plan, TextSettings("x"))
    assert lines(plan)["letters"].seconds == FIRST_GUESS.get("letters", 1.0)
    run(home, "xyz")
    plan = planner(home)
    letters(plan, TextSettings("new"))
    assert lines(plan)["letters"].seconds < 1.0
    plan = planner(home)
    plan.expect_seconds(letters, 120.0)
    letters(plan, TextSettings("new"))
    assert lines(plan)["letters"].seconds == 120.0


def test_the_key_of_a_stage_of_many_units_is_the_same_in_a_run_that_found_all_of_them(home: Home) -> None:
    first, second = (lines(run(home, "xyz"))["capitals"].key for _ in range(2))
    assert first == second != ""


def test_a_planning_run_has_no_machine(home: Home) -> None:
    with pytest.raises(RuntimeError, match="a plan computes nothing"):
        _ = planner(home).machine


def test_files_from_outside_are_copied_by_a_run_and_only_named_by_a_plan(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("as it was")
    ref, (original,) = planner(home).add("notes", {"notes.txt": file})
    assert not ref.made and original == file
    ref, (copy,) = new_run(home).add("notes", {"notes.txt": file})
    file.write_text("as it is now")
    assert ref.made and copy.read_text() == "as it was"
