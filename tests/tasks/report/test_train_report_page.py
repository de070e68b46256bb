"""The report of a training as a page and as Markdown: whole for any training, true figures, words that stay words."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from html_tags import Tags, sections_of
from train_report_samples import bare, broken, changed, one_step, rich, stopped_early

from tasks.report.queries import Row
from tasks.report.training import (
    Curve,
    derived,
    notices,
    training_page,
)
from tasks.training.telemetry import Event, Notes, Sample

Make = Callable[[], Row]
TRAININGS: list[Make] = [rich, bare, one_step, broken, stopped_early]


def page_of(figures: Row) -> str:
    return training_page(figures, "fold")[0]


def words_of(figures: Row) -> str:
    return " ".join(Tags(page_of(figures)).words)


def facts(figures: Row) -> dict[str, str]:
    """Figures at the top of the page."""
    return dict(re.findall(r"<div><dt>(.*?)</dt><dd>(.*?)</dd>", page_of(figures).partition("</dl>")[0]))


def titles(figures: Row) -> str:
    return "\n".join(notice.title for notice in notices(figures))


@pytest.mark.parametrize("make", TRAININGS)
def test_the_page_of_any_training_is_whole_fetches_nothing_and_runs_nothing(make: Make) -> None:
    page, summary = training_page(make(), "fold")
    tags = Tags(page)
    assert set(sections_of(page)) <= set(tags.ids)
    assert len(tags.ids) == len(set(tags.ids))
    assert len(summary.splitlines()) <= 60
    assert not tags.names & {"script", "iframe", "object", "embed", "form", "base", "img"}
    assert all(address.startswith(("#", "data:")) for address in tags.addresses)
    assert "url(" not in page and "@import" not in page
    assert "default-src 'none'" in page


def test_words_of_documents_are_only_words() -> None:
    page, summary = training_page(rich(), "<b>fold")
    assert "<img" not in page and "<b>fold" not in page
    assert not set(page) & {"\u202e", "\x00"}
    assert "<img src=x onerror=hit=1>" in words_of(rich()), "in a sample, an event and a prompt"
    assert all(sample.prompt not in summary for sample in rich().notes.samples)
    assert "\\<img" in summary and not set(summary) & {"\u202e", "\x00"}


def test_every_curve_is_drawn_over_the_same_steps() -> None:
    page = page_of(rich())
    for name in ("loss", "lr", "gradient", "speed", "memory"):
        assert f'id="curve-{name}"' in page
    assert page.count("600 values") >= 4


def test_figures_follow_from_the_curves() -> None:
    figures = derived(rich())
    assert (figures.steps, figures.tokens) == (600, 600 * 4096)
    assert figures.epochs == pytest.approx(600 * 16 / 3200)
    seconds = sum(rich().curves["time/step_seconds"].values)
    assert figures.tokens_per_second == pytest.approx(600 * 4096 / seconds)
    assert figures.mfu == pytest.approx(figures.tokens_per_second * 8.5e7 / 2.55e11)
    assert facts(rich())["Tokens"] == "2.46M, 3.00 epochs"


def test_what_is_not_known_is_not_made_up() -> None:
    found = facts(bare())
    losses = (f"{name} loss, nats per token" for name in ("Training", "Validation"))
    assert {found[name] for name in (*losses, "Speed", "MFU", "Time in steps")} == {"–"}
    assert "recorded no loss" in words_of(bare())


def test_a_validation_loss_that_rose_again_is_told_with_its_lowest_step() -> None:
    assert "The validation loss rose again: 2.900 at step 200, 3.200 at the end" in titles(stopped_early())


def remembered(**more: Curve) -> Row:
    """A training that forgot some of its base, whose lowest validation loss is at step 300."""
    bits = {"replay": Curve([0, 300, 600], [1.9, 2.2, 2.31]), "own": Curve([0, 300, 600], [2.8, 2.0, 1.95])}
    named = {f"val_sample/{name}_bits_per_byte": curve for name, curve in bits.items()}
    losses = {"val_sample/loss": Curve([300, 600], [2.9, 3.0])}
    return changed(rich(), curves={**rich().curves, **losses, **named, **more}, modes={"replay": "general"})


def test_both_ends_of_the_replay_set_and_of_the_rest_are_told_beside_their_curves() -> None:
    assert 'id="curve-kept"' in page_of(remembered()) and 'id="curve-kept"' not in page_of(rich())
    sentence = "Replay set general: 1.90 → 2.31 bits per byte, forgotten +0.41; own: 2.80 → 1.95."
    assert sentence in words_of(remembered())
    assert facts(remembered())["Forgotten of general, bits per byte"] == "+0.41"


def test_what_was_forgotten_is_told_of_the_weights_that_patience_kept() -> None:
    patient = changed(remembered(), train={**remembered().train, "patience": 3})
    assert "1.90 → 2.20 bits per byte, forgotten +0.30; own: 2.80 → 2.00." in words_of(patient)


def test_nothing_is_told_of_forgetting_across_other_validation_sequences() -> None:
    other = remembered(**{"val_sample/source_changed": Curve([301], [1.0])})
    assert "forgotten" not in words_of(other) and 'id="curve-kept"' in page_of(other)


def test_an_early_stop_is_told() -> None:
    assert "it stopped early, before 600 steps" in words_of(stopped_early())
    assert facts(stopped_early())["Steps"] == "300 of 600"


def test_a_loss_that_fell_to_the_end_is_no_notice() -> None:
    falling = changed(rich(), curves={**rich().curves, "val_sample/loss": Curve([300, 600], [3.0, 2.9])})
    assert not [title for title in titles(falling) if "validation loss" in title]


def test_losses_that_are_no_numbers_and_those_that_did_not_fall_are_told() -> None:
    assert "The loss was not finite at some step" in titles(broken())
    assert "The loss did not fall: 2.000 at first, 2.500 at the end" in titles(broken())


def test_events_are_counted_by_kind_and_the_graver_ones_come_first() -> None:
    spikes = [Event(step, "spike", "it leapt", 0.0) for step in (30, 40)]
    figures = changed(rich(), notes=Notes([], [*spikes, Event(10, "resumed", "went on", 0.0)], []))
    found = [notice for notice in notices(figures) if notice.section == "events"]
    assert [(notice.level, notice.title) for notice in found] == [
        ("check", "Loss spike: 2 times, first at step 30"),
        ("note", "Resumed at step 10"),
    ]


def test_text_that_was_read_often_is_told() -> None:
    assert "Each training document was read 12.0 times" in titles(
        changed(rich(), epoch=Row(sequences=800, tokens=1.0, documents=None))
    )


def test_events_are_marks_of_the_curves_and_rows_of_a_table() -> None:
    page = page_of(rich())
    assert page.count("resumed: went on from the checkpoint of step 212") >= 2
    assert "something new" in words_of(rich())


def test_of_many_samples_the_first_and_the_last_are_shown() -> None:
    many = [Sample(step, "prompt", f"text{step}.") for step in range(1, 101)]
    words = words_of(changed(rich(), notes=Notes([], [], many)))
    assert "text1." in words and "text100." in words
    assert sum(f"text{step}." in words for step in range(1, 101)) == 6
