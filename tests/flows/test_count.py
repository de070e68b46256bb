"""`sheepfold count`: what it prints for people and machines, what it refuses, and that it needs no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flows.cli import app
from flows.cli_common import figure
from model.presets import PRESETS
from tasks.training.network_cost import PUBLISHED, network_cost

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, columns: int = 80) -> Result:
    return CliRunner().invoke(app, ["count", *arguments], env={"COLUMNS": str(columns), "TERM": "dumb"})


def run_json(*arguments: str) -> dict:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    document: dict = json.loads(result.stdout)
    return document


def test_count_needs_no_torch() -> None:
    code = (
        "import sys; from flows.cli import app; "
        "app(['count', '--preset', 'llama-13b', '--target', '1e9'], standalone_mode=False); "
        "app(['count', '--table'], standalone_mode=False); "
        "assert not {'torch', 'numpy', 'prefect', 'mlflow'} & set(sys.modules), 'a heavy library was imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("columns", [80, 120])
def test_every_preset_is_told_within_the_window(name: str, columns: int) -> None:
    result = run("--preset", name, "--batch", "8", columns=columns)
    assert result.exit_code == 0
    tables = [line for line in result.stdout.splitlines() if line.startswith(" ")]
    assert "…" not in result.stdout
    assert max(map(len, tables)) <= columns


def test_counts_have_thousands_separators_shares_and_units() -> None:
    lines = {
        words[0].rstrip(":"): words[1:]
        for line in run("--preset", "gpt2").stdout.splitlines()
        if (words := line.split())
    }
    assert lines["total"] == ["124,439,808", "100.0%", "7,087,872"]
    assert lines["mlp"] == ["56,669,184", "45.5%", "4,722,432"]
    assert lines["weight_bytes"] == ["497,759,232", "(474.7", "MiB)"]
    assert lines["forward_flops_per_token"] == ["284,812,800", "(284.8", "MFLOP)"]
    assert lines["cache_bytes_per_token"] == ["73,728", "(72.0", "KiB)"]
    assert lines["d_model"] == ["768"]


def test_json_is_one_document_of_raw_integers() -> None:
    found = run_json("--preset", "gpt2", "--batch", "4", "--context", "512")
    assert found["parameters"]["total"] == 124_439_808 - 512 * 768
    assert (found["cost"]["batch_size"], found["cost"]["n_tokens"]) == (4, 512)
    figures = [*found["cost"].values(), *found["parameters"].values(), *found["layer"].values()]
    assert all(type(value) is int for value in figures)
    assert sum(found["shares"].values()) == pytest.approx(1)


def test_vocabulary_and_settings_replace_the_presets() -> None:
    found = run_json(
        "--preset", "gpt2", "--vocab-size", "1000", "--set", "model.n_layer=3", "--set", "model.tie_weights=false"
    )
    assert (found["config"]["n_layer"], found["config"]["vocab_size"]) == (3, 1000)
    assert found["parameters"]["head"] == 1000 * 768


def test_every_term_of_the_complexity_has_its_factor() -> None:
    """The second source document's own network and its figures."""
    found = run_json("--preset", "light_llm")["complexity"]
    n, d, vocab = 1024, 384, 50257
    terms = {term["part"]: (term["order"], term["factor"], term["per_layer"]) for term in found["forward_flops"]}
    assert terms == {
        "projections": ("O(T d^2)", 8, 8 * n * d**2),
        "scores, values": ("O(T^2 d)", 4, 4 * n**2 * d),
        "feed-forward": ("O(T d^2)", 16, 16 * n * d**2),
        "head": ("O(T d V)", 2, None),
    }
    whole = 6 * (24 * n * d**2 + 4 * n**2 * d) + 2 * n * d * vocab
    assert sum(term["total"] for term in found["forward_flops"]) == whole
    assert found["forward_pass"] == f"L (24 T d^2 + 4 T^2 d) + 2 T d V = {whole:,} FLOPs"
    values = {term["part"]: (term["order"], term["per_layer"], term["total"]) for term in found["values"]}
    assert values["attention scores"] == ("O(H T^2)", 6_291_456, 37_748_736)
    assert values["activations"] == ("O(T d)", 393_216, 2_359_296)
    assert values["gradients"] == ("O(N)", None, 30_339_456)


def test_a_tied_head_is_counted_beside_an_untied_one() -> None:
    found = run_json("--preset", "gpt2")["totals"]
    assert found["tied"]["parameters"] == 124_439_808
    assert found["untied"]["parameters"] == 124_439_808 + 50257 * 768
    assert found["tied"]["rule_of_thumb"] == 12 * 12 * 768**2 + 50257 * 768
    for item in found.values():
        assert item["tables"] + item["layers"] + item["rest"] == item["parameters"]
    shown = run("--preset", "gpt2").stdout
    assert "V d + L N + rest = 38,597,376 + 12 x 7,087,872 + 787,968 = 124,439,808" in shown
    assert "2 x V d + L N + rest = 2 x 38,597,376 + 12 x 7,087,872 + 787,968 = 163,037,184" in shown


@pytest.mark.parametrize(("preset", "dim"), [("sheepop", 512), ("llama-7b", 128)])
def test_wavelengths_of_each_pair_are_shown_beside_those_of_other_bases(preset: str, dim: int) -> None:
    from math import pi

    rows = run_json("--preset", preset, "--wavelengths", "--base", "100", "--base", "100000")["wavelengths"]
    assert len(rows) == dim // 2
    for base in ("10000", "100", "100000"):
        expected = [2 * pi * float(base) ** (2 * row["pair"] / dim) for row in rows]
        assert [row[base] for row in rows] == pytest.approx(expected, rel=1e-12)


def test_a_target_chooses_the_nearest_depth() -> None:
    found = run_json("--preset", "fundamentals", "--target", "1e9")
    assert found["solved"]["layers"] == pytest.approx(17.78, abs=0.01)
    assert found["config"]["n_layer"] == found["solved"]["n_layer"] == 18
    assert "layers: 17.78" in run("--preset", "fundamentals", "--target", "1e9").stdout


@pytest.mark.parametrize(("name", "n_layer"), [("fundamentals", 18), ("gpt2-xl", 48), ("llama-7b", 32)])
def test_the_depth_of_a_models_own_size_is_its_own(name: str, n_layer: int) -> None:
    own = network_cost(name, 0, 0, 1, 0, [])
    total, per_layer = own["parameters"]["total"], sum(own["layer"].values())

    def depth(target: float) -> int:
        return network_cost(name, 0, 0, 1, target, ["model.n_layer=1"])["solved"]["n_layer"]

    assert {depth(total + part * per_layer) for part in (-0.49, 0, 0.49)} == {n_layer}
    assert depth(total + 0.51 * per_layer) == n_layer + 1
    assert depth(total - (n_layer - 1e-6) * per_layer) == 1


def test_the_table_compares_the_published_sizes() -> None:
    rows = {row["preset"]: row for row in run_json("--table")["models"]}
    assert {name: row["parameters"] for name, row in rows.items()} == {
        "gpt2": 124_439_808,
        "gpt2-medium": 354_823_168,
        "gpt2-large": 774_030_080,
        "gpt2-xl": 1_557_611_200,
        "llama-7b": 6_738_415_616,
        "llama-13b": 13_015_864_320,
    }
    assert rows["llama-7b"]["rule_of_thumb"] == 6_704_594_944
    text = run("--table").stdout
    assert all(name in text for name in PUBLISHED.values())
    assert "13,015,864,320" in text and "…" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "gtp2"], "no preset 'gtp2'; did you mean gpt2?"),
        (["--preset", "zzzz"], "no preset 'zzzz'; choose one of tiny, small"),
        (["--preset", "tiny", "--set", "model.n_layers=3"], "did you mean model.n_layer?"),
        (["--preset", "tiny", "--set", "train.lr=3"], "unknown setting of a network"),
        (["--preset", "tiny", "--set", "model.n_layer"], "expected section.name=value"),
        (["--preset", "tiny", "--set", "model.n_head=7"], "choose a d_model that is a multiple of n_head"),
        (["--preset", "tiny", "--target", "10"], "10 parameters leave nothing for the layers"),
        (["--preset", "tiny", "--context", "1"], "max_seq_len=1; expected a whole number of at least 2"),
        (["--preset", "gpt2", "--wavelengths"], "pos='learned' has no wavelengths"),
        (["--preset", "llama", "--wavelengths", "--base", "1"], "--base 1; expected a number above 1"),
        (["--base", "100"], "add --wavelengths"),
        (["--table", "--target", "1e9"], "--table shows the published sizes"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_told_in_one_sentence(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("bytes", 0, "0"),
        ("bytes", 1023, "1,023"),
        ("weight_bytes", 1024, "1,024 (1.0 KiB)"),
        ("size", 3 * 2**30, "3,221,225,472 (3.0 GiB)"),
        ("training_step_flops", 1_680_343_040, "1,680,343,040 (1.7 GFLOP)"),
        ("rows", 37_748_736, "37,748,736"),
        ("pid", 12345, "12345"),
        ("healthy", True, "yes"),
        ("champion", None, "none"),
        ("path", "a\nb\x1b[31m", "a b\\x1b[31m"),
    ],
)
def test_values_are_shown_with_separators_and_units(name: str, value: object, text: str) -> None:
    assert figure(name, value) == text
