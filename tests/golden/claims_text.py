"""Claims on tokenisers and embeddings."""

from __future__ import annotations

import pytest
import torch

from golden.networks import head_of
from golden.registry import Entry, behaviour
from golden.shared import built, example, numbers
from model import preset
from tasks.tokens.tokenizer_kinds import AsciiTokenizer, WordTokenizer


@behaviour("s000-tok-bijective")
def encoding_loses_unknown_characters(entry: Entry) -> None:
    tokenizer = AsciiTokenizer()
    ids = tokenizer.encode(entry["inputs"]["unknown_characters"])
    assert [one.tolist() for one in ids] == [[entry["inputs"]["unk_id"]]] * len(ids)
    known = "".join(map(chr, range(4, 128)))
    assert tokenizer.decode(tokenizer.encode([known])[0].tolist()) == known


@behaviour("s000-embed-values", "s001-embed-values")
def embedding_rows_are_looked_up(entry: Entry) -> None:
    """The stated columns of the stated rows are loaded, and the network's embedding gives them back."""
    columns = entry["inputs"].get("columns", [0, 1, -1])
    model = built(preset("sheepop", n_layer=1, pos="none"))
    rows = {ord(name) if len(name) == 1 else int(name): values for name, values in entry["expected"].items()}
    for index, values in rows.items():
        model.token_embedding.weight.data[index, columns] = numbers(values)
    ids = torch.tensor([[*rows, *rows]])
    assert model.embed(ids, slice(ids.shape[1]))[0][:, columns].tolist() == [*rows.values(), *rows.values()]


@behaviour("s003-completion")
def greedy_answer_completes_the_text(entry: Entry) -> None:
    """The document's output head scores the printed state of the last token; the rest of its network is withheld."""
    words = WordTokenizer(example("s003-tokenize")["vocab"])
    stated = example("s003-logits")["inputs"]
    token = int(head_of(stated["W"]).head(numbers(stated["x"])).argmax())
    assert token == entry["inputs"]["next"]
    assert words.decode([*entry["inputs"]["prompt"], token]) == entry["expected"]


@behaviour("s000-distance", own=False)
def the_shown_columns_are_a_part_of_the_distance(entry: Entry) -> None:
    shown = torch.dist(numbers(entry["inputs"]["a"]), numbers(entry["inputs"]["b"])).item()
    assert shown == pytest.approx(entry["partial_value"], abs=1e-9)
    assert shown < entry["expected"]  # the other columns make up the rest
