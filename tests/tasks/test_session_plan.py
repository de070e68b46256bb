"""Sessions keep the report of what was computed; a plan says the same beforehand and computes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from stage_samples import Calls, TextSettings, capitals, joined, letters
from tasks.session import FIRST_GUESS, Call, Pending, Planner, Session, StageReport, artifact

from storage.home import Home
from storage.manifest import ArtifactRef, RefSet
from tasks.stage import Stage, stage

Result = ArtifactRef | Pending


def wire(session: Session, texts: str, shout: str = "a") -> Result:
    """letters for each text -> capitals of each -> joined."""
    made = session.run_each(letters, [Call(TextSettings(text), {}, units=1) for text in texts])
    raised = session.run_each(capitals, [Call(TextSettings(shout), {"source": ref}, units=2) for ref in made])
    waiting = [ref for ref in raised if isinstance(ref, Pending)]
    parts: RefSet | Pending = waiting[0] if waiting else RefSet(tuple(map(artifact, raised)), texts.upper())
    first = session.run(letters, TextSettings("first"))
    return session.run(joined, None, parts=parts, first=first)


def lines(session: Session) -> dict[str, StageReport]:
    return {report.stage: report for report in session.report_list()}


def figures(session: Session) -> dict[str, tuple[bool, int, int]]:
    return {name: (report.cached, report.computed, report.reused) for name, report in lines(session).items()}


def tree(home: Home) -> Iterator[tuple[str, bytes | None]]:
    for path in sorted(home.path.rglob("*")):
        yield str(path), path.read_bytes() if path.is_file() else None


def run(home: Home, texts: str, **options: str) -> Session:
    session = Session(home, Calls())
    wire(session, texts, **options)
    return session


def test_a_run_reports_what_it_computed_and_the_next_what_it_reused(home: Home) -> None:
    assert figures(run(home, "xyz")) == {
        "letters": (False, 4, 0),
        "capitals": (False, 6, 0),
        "joined": (False, 1, 0),
    }
    second = run(home, "xyz")
    assert figures(second) == {"letters": (True, 0, 4), "capitals": (True, 0, 6), "joined": (True, 0, 1)}
    assert second.resources.seen == []


def test_a_run_after_a_small_change_computes_only_what_changed(home: Home) -> None:
    run(home, "xyz")
    session = run(home, "xyzw")
    assert session.resources.seen == ["w", "W", "firstXYZW"]
    assert figures(session) == {"letters": (False, 1, 4), "capitals": (False, 2, 6), "joined": (False, 1, 0)}


def test_artefacts_of_many_requests_come_in_the_order_of_the_requests(home: Home) -> None:
    run(home, "bd")
    session = Session(home, Calls())
    refs = session.run_each(letters, [Call(TextSettings(text), {}, 1) for text in "abcde"])
    texts = [(session.store.folder(artifact(ref)) / "text").read_text() for ref in refs]
    assert texts == list("abcde")


def test_rows_of_a_report_count_cached_artefacts_too(home: Home) -> None:
    assert lines(run(home, "xyz"))["letters"].rows == 3 + len("first")
    assert lines(run(home, "xyzw"))["letters"].rows == 4 + len("first")


def test_a_plan_computes_nothing_and_writes_nothing(home: Home) -> None:
    run(home, "xy")
    before = list(tree(home))
    planner = Planner(home)
    wire(planner, "xyz")
    assert list(tree(home)) == before
    fresh = Planner(Home.from_environment(home.path / "never"))
    wire(fresh, "xyz")
    assert not (home.path / "never").exists()


def test_a_plan_of_a_finished_run_says_its_keys_and_that_all_is_cached(home: Home) -> None:
    run(home, "xyz")
    planner, session = Planner(home), Session(home, Calls())
    assert wire(planner, "xyz") == wire(session, "xyz")
    assert figures(planner) == figures(session)
    assert {name: report.key for name, report in lines(planner).items()} == {
        name: report.key for name, report in lines(session).items()
    }


def test_a_plan_says_the_key_of_what_is_missing_where_its_inputs_are_there(home: Home) -> None:
    run(home, "xyz")
    changed = TextSettings("something else")
    planner, session = Planner(home), Session(home, Calls())
    assert isinstance(planner.run(letters, changed), Pending)
    made = artifact(session.run(letters, changed))
    assert lines(planner)["letters"].key == lines(session)["letters"].key == made.key


def test_a_plan_counts_what_the_following_run_computes(home: Home) -> None:
    run(home, "xyz")
    planner = Planner(home)
    assert isinstance(wire(planner, "xyzw"), Pending)
    planned = {name: computed for name, (_, computed, _) in figures(planner).items()}
    assert planned == {name: computed for name, (_, computed, _) in figures(run(home, "xyzw")).items()}


def reason(home: Home, requested: Stage, settings: object, **inputs: ArtifactRef) -> str:
    planner = Planner(home)
    planner.run(requested, settings, **inputs)
    return lines(planner)[requested.name].reason


def test_a_plan_says_why_something_is_not_cached(home: Home) -> None:
    assert reason(home, letters, TextSettings("x")) == "never computed"
    session = Session(home, Calls())
    x, y = (artifact(session.run(letters, TextSettings(text))) for text in "xy")
    session.run(capitals, TextSettings("a"), source=x)
    assert reason(home, letters, TextSettings("x")) == ""
    assert reason(home, letters, TextSettings("z")) == "changed setting: text"
    assert reason(home, capitals, TextSettings("a"), source=y) == "changed input: source"
    newer = stage("letters", version=2)(letters.function)
    assert reason(home, newer, TextSettings("x")) == "stage version 1 -> 2"


def test_a_plan_copes_with_artefacts_whose_inputs_had_other_names(home: Home) -> None:
    session = Session(home, Calls())
    x = artifact(session.run(letters, TextSettings("x")))
    session.run(capitals, TextSettings("a"), source=x)

    def renamed(work: object, settings: object, *, original: ArtifactRef) -> str:
        raise NotImplementedError

    assert reason(home, stage("capitals", version=1)(renamed), TextSettings("a"), original=x) == (
        "changed input: original"
    )


def test_a_plan_says_what_a_stage_waits_for(home: Home) -> None:
    planner = Planner(home)
    result = wire(planner, "x")
    assert isinstance(result, Pending) and result.stage == "joined"
    assert lines(planner)["capitals"].reason == "waits for letters"
    assert lines(planner)["joined"].reason == "waits for capitals"


def test_a_refresh_computes_each_artefact_of_the_stage_once_and_what_follows_from_it_not_at_all(home: Home) -> None:
    run(home, "xy")
    planner = Planner(home, refresh=["letters"])
    wire(planner, "xy")
    assert figures(planner)["letters"] == (False, 3, 0)
    assert lines(planner)["letters"].reason == "refresh asked for"
    session = Session(home, Calls(), refresh=["letters"])
    wire(session, "xy")
    wire(session, "xy")
    assert session.resources.seen == ["x", "y", "first"]  # the same content again: nothing downstream changes
    assert figures(session)["capitals"] == (True, 0, 8)


def test_a_plan_notes_code_that_changed_since_the_artefacts_were_made(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(home, "x")
    quiet = Planner(home)
    wire(quiet, "x")
    assert quiet.notes == []
    monkeypatch.setattr(Stage, "code", "other code")
    planner = Planner(home)
    wire(planner, "x")
    wire(planner, "x")
    assert [note.split(" changed")[0] for note in planner.notes] == [
        "the code of stage letters",
        "the code of stage capitals",
        "the code of stage joined",
    ]
    assert figures(planner)["letters"][0]  # noted, but never recomputed behind the person's back


def test_a_plan_estimates_by_what_was_told_then_by_what_was_measured_then_by_a_guess(home: Home) -> None:
    planner = Planner(home)
    planner.run(letters, TextSettings("x"))
    assert lines(planner)["letters"].seconds == FIRST_GUESS.get("letters", 1.0)
    run(home, "xyz")
    planner = Planner(home)
    planner.run(letters, TextSettings("new"))
    assert lines(planner)["letters"].seconds < 1.0
    planner = Planner(home)
    planner.expect_seconds(letters, 120.0)
    planner.run(letters, TextSettings("new"))
    assert lines(planner)["letters"].seconds == 120.0


def test_a_pending_artefact_cannot_be_used_as_one() -> None:
    with pytest.raises(RuntimeError, match="stage letters was not computed: never computed"):
        artifact(Pending("letters", "never computed"))
