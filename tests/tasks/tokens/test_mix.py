"""Mixes: reads in whole sequences that give the shares asked for, as near as sequences allow."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import UserError
from tasks.core.settings import load_settings, parse_assignments
from tasks.tokens.groups import plan_reads, realised
from tasks.tokens.settings import MixError, MixSettings, parse_shares

TOKENS = {"code": 10_000, "notes": 500, "prose": 40_000}
SEQUENCES = {"code": 100, "notes": 10, "prose": 400}


def mix(**values: Any) -> MixSettings:
    return MixSettings(by="kind", **values)


def test_shares_are_read_as_they_are_written() -> None:
    assert parse_shares("mix.weights", ' code = 0.3,prose=7e-1, "a, b=c" =2,') == {
        "code": Fraction(3, 10),
        "prose": Fraction(7, 10),
        "a, b=c": Fraction(2),
    }


@pytest.mark.parametrize(
    "text", ["code", "code=", "=1", "code=0.3;prose=1", "code=x", "code=-1", "code=inf", "code=nan", "a=1,a=2", "a=1=2"]
)
def test_shares_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"mix\.weights"):
        mix(weights=text)


def test_long_nonsense_is_refused_in_no_time() -> None:
    for text in (" " * 10**6, "a" * 10**6, '"' * 10**6, "a=1," * 10**5 + " " * 10**6, "=" * 10**6, "1 " * 10**6):
        with pytest.raises(ValueError, match=r"mix\.weights|twice") as told:
            parse_shares("mix.weights", text + "!")
        assert len(str(told.value)) < 1_000


@pytest.mark.parametrize("text", ["{}=x", "x={}", "{0}=1, {0}=2"])
def test_of_long_names_and_numbers_only_the_beginning_is_repeated(text: str) -> None:
    with pytest.raises(ValueError, match=r"mix\.weights") as told:
        mix(weights=text.format("n" * 10**5))
    assert len(str(told.value)) < 1_000


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"by": "", "weights": "a=1"}, "give mix.by"),
        ({"weights": "a=1", "temperature": 0.5}, "give one of them"),
        ({"temperature": -1.0}, "mix.temperature"),
        ({"temperature": math.nan}, "mix.temperature"),
        ({"max_epochs": 0.5}, "mix.max_epochs"),
        ({"max_epochs": math.nan}, "mix.max_epochs"),
        ({"max_epochs": 1e12, "weights": "a=1"}, "mix.max_epochs is .*, expected 1 to 10000"),
        ({"epochs": "a=1,b=1e12"}, r"mix\.epochs: 'b' has 1e\+12, expected at most 10000"),
        ({"epochs": "a=1,*=10000.5"}, r"mix\.epochs: '\*' has 10000\.5, expected at most 10000"),
        ({"weights": "a=0"}, "nothing would be read"),
        ({"epochs": "a=0,*=0"}, "nothing would be read"),
    ],
)
def test_settings_that_ask_for_nothing_possible_are_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        load_settings(None, {"mix": {"by": "kind", **values}})


def test_a_mix_is_a_section_of_the_settings() -> None:
    found = load_settings(None, parse_assignments(["mix.by=kind", "mix.weights=code=0.3,prose=0.7"]))
    assert found.mix == MixSettings(by="kind", weights="code=0.3,prose=0.7")
    with pytest.raises(UserError, match=r"mix\.weights"):
        load_settings(None, parse_assignments(["mix.by=kind", "mix.weights=code"]))


def test_without_a_mix_each_sequence_is_read_once() -> None:
    assert plan_reads(TOKENS, SEQUENCES, MixSettings()) == SEQUENCES
    assert plan_reads(TOKENS, SEQUENCES, mix()) == SEQUENCES


def test_weights_are_shares_of_tokens_and_every_group_is_read_at_least_once() -> None:
    reads = plan_reads(TOKENS, SEQUENCES, mix(weights="code=30,prose=60,notes=10", max_epochs=20))
    # notes weigh 10 %: at their 13.3 passes all of prose is read
    assert reads == {"code": 200, "notes": 133, "prose": 400}


def test_no_group_is_read_more_often_than_allowed() -> None:
    reads = plan_reads(TOKENS, SEQUENCES, mix(weights="code=30,prose=60,notes=10"))
    assert reads == {"code": 60, "notes": 40, "prose": 120}


def test_a_star_stands_for_all_other_groups_by_their_tokens() -> None:
    named = mix(weights="code=0.3,*=0.7")
    shares = {item.name: item.share_asked for item in realised(TOKENS, SEQUENCES, SEQUENCES, named)}
    assert shares == pytest.approx({"code": 0.3, "prose": 0.7 * 40_000 / 40_500, "notes": 0.7 * 500 / 40_500})


def test_temperature_1_changes_nothing_and_0_5_favours_the_small() -> None:
    assert plan_reads(TOKENS, SEQUENCES, mix(temperature=1.0)) == SEQUENCES
    half = {item.name: item for item in realised(TOKENS, SEQUENCES, SEQUENCES, mix(temperature=0.5))}
    roots = {name: math.sqrt(n) for name, n in TOKENS.items()}
    assert half["notes"].share_asked == pytest.approx(roots["notes"] / sum(roots.values()))


def test_epochs_are_passes_and_who_is_not_named_is_read_once() -> None:
    assert plan_reads(TOKENS, SEQUENCES, mix(epochs="code=2,notes=0.25")) == {"code": 200, "notes": 3, "prose": 400}
    assert plan_reads(TOKENS, SEQUENCES, mix(epochs="code=7,*=0")) == {"code": 700, "notes": 0, "prose": 0}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"weights": "code=1,prose=1,notes=1,poems=1"}, r"'poems', but no .* are 'code', 'notes', 'prose'"),
        ({"weights": "code=1"}, r"has no value for 'notes', 'prose'; .*\*=NUMBER"),
        ({"epochs": "poems=2"}, "'poems'"),
    ],
)
def test_names_that_do_not_fit_the_corpus_are_told_with_what_is_there(values: dict[str, Any], told: str) -> None:
    with pytest.raises(MixError, match=told):
        plan_reads(TOKENS, SEQUENCES, mix(**values))


def test_a_group_without_sequences_leaves_its_weight_to_the_others() -> None:
    tokens, sequences = {"a": 100, "b": 100, "empty": 0}, {"a": 10, "b": 10, "empty": 0}
    weighted = mix(weights="a=1,b=1,empty=8")
    assert plan_reads(tokens, sequences, weighted) == {"a": 10, "b": 10, "empty": 0}
    assert [item.share_realised for item in realised(tokens, sequences, sequences, weighted)] == [0.5, 0.5, 0]


GROUPS = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.tuples(st.integers(1, 500), st.integers(1, 300), st.integers(0, 40)),  # sequences, tokens in each, weight
    min_size=1,
    max_size=8,
).filter(lambda groups: any(weight for _, _, weight in groups.values()))


def _case(groups: dict[str, tuple[int, int, int]]) -> tuple[dict[str, int], dict[str, int], str]:
    tokens = {name: n * size for name, (n, size, _) in groups.items()}
    weights = ",".join(f"{name}={weight}" for name, (_, _, weight) in groups.items())
    return tokens, {name: n for name, (n, _, _) in groups.items()}, weights


@settings(max_examples=150, deadline=None)
@given(GROUPS, st.integers(4, 40))
def test_reads_are_within_one_sequence_of_what_was_asked_for(
    groups: dict[str, tuple[int, int, int]], quarters: int
) -> None:
    tokens, sequences, weights = _case(groups)
    most = quarters / 4
    reads = plan_reads(tokens, sequences, mix(weights=weights, max_epochs=most))
    all_weights = sum(weight for _, _, weight in groups.values())
    shares = {name: Fraction(weight, all_weights) for name, (_, _, weight) in groups.items()}
    once = max(tokens[name] / share for name, share in shares.items() if share)
    total = min(once, *(Fraction(most) * tokens[name] / share for name, share in shares.items() if share))
    for name, (n, size, weight) in groups.items():
        assert abs(reads[name] - total * shares[name] / size) < 1
        assert reads[name] <= most * n
        assert (reads[name] > 0) == (weight > 0)


@settings(max_examples=50, deadline=None)
@given(GROUPS, st.randoms(use_true_random=False))
def test_the_order_of_groups_and_of_weights_does_not_matter(groups: dict[str, tuple[int, int, int]], draw: Any) -> None:
    tokens, sequences, weights = _case(groups)
    shuffled = list(groups)
    draw.shuffle(shuffled)
    again = plan_reads(
        {name: tokens[name] for name in shuffled},
        {name: sequences[name] for name in reversed(shuffled)},
        mix(weights=",".join(reversed(weights.split(",")))),
    )
    assert list(again.items()) == list(plan_reads(tokens, sequences, mix(weights=weights)).items())


@settings(max_examples=50, deadline=None)
@given(GROUPS)
def test_realised_shares_add_up_and_follow_the_reads(groups: dict[str, tuple[int, int, int]]) -> None:
    tokens, sequences, weights = _case(groups)
    weighted = mix(weights=weights)
    found = realised(tokens, sequences, plan_reads(tokens, sequences, weighted), weighted)
    assert sum(item.share_realised for item in found) == pytest.approx(1)
    assert sum(item.share_asked for item in found) == pytest.approx(1)
    for item in found:
        assert item.tokens_read == pytest.approx(item.reads * tokens[item.name] / sequences[item.name])
        assert item.passes == pytest.approx(item.reads / sequences[item.name])


def test_a_group_may_be_left_out_by_its_epochs_alone() -> None:
    assert plan_reads(TOKENS, SEQUENCES, mix(epochs="notes=0")) == {"code": 100, "notes": 0, "prose": 400}


@pytest.mark.parametrize(
    ("values", "left"),
    [
        ({"weights": "code=0.3,*=0.7"}, {"weights": '"*"=0.7'}),
        ({"weights": 'code=1, "a, b=c"=0.1, prose=3'}, {"weights": '"a, b=c"=0.1, "prose"=3.0'}),
        ({"weights": "prose=1,*=2"}, {"weights": "prose=1,*=2"}),
        ({"epochs": "code=2"}, {"epochs": ""}),
        ({"epochs": "code=2, notes=0"}, {"epochs": '"notes"=0.0'}),
        ({"temperature": 0.5}, {"temperature": 0.5}),
    ],
)
def test_a_mix_without_a_group_says_nothing_of_it_and_keeps_the_rest(
    values: dict[str, Any], left: dict[str, Any]
) -> None:
    assert mix(**values).without({"code"}) == mix(**left)


@pytest.mark.parametrize("values", [{"weights": "code=1,*=0"}, {"epochs": "code=1,prose=0,*=0"}])
def test_a_mix_of_nothing_but_a_group_is_none_without_it(values: dict[str, Any]) -> None:
    with pytest.raises(MixError, match="without 'code' nothing is left to train on"):
        mix(**values).without({"code"})
