"""The graph of the stages, from the wiring of the flows: it is run over a plan, and each call of a stage is noted."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from docs.drawing import FILLS, box, curve, document, text
from flows.generate import make_completions
from flows.plan import plan_retraining
from flows.stages import all_stages
from storage.home import Home
from storage.manifest import ArtifactRef, RefSet
from tasks.core.run import Run
from tasks.core.settings import load_settings
from tasks.core.stage import Call, Stage
from tasks.generation.completions import Prompt

FLOWS = {  # in the order of the picture
    "ingest": "blue",
    "compare": "grey",
    "prepare": "green",
    "train": "yellow",
    "generate": "violet",
    "evaluate": "teal",
    "promote": "red",
}
WIDTH, LABELS = 900, 84  # of the picture and of the names of the flows in it; pixels
BOX, TALL, ROW, BESIDE, THIN = 107, 30, 62, 10, 8  # width and height of a box, rows, gaps, an arrow that passes


@dataclass
class Wiring:
    """A stage in the flows.

    Attributes:
        flow: Flow that calls it.
        inputs: Stages that give each input, by the input's name.
        after: Stages whose artefacts its settings or unkeyed arguments are read from.
        many: It is called once for each of several segments or shards.
    """

    flow: str
    inputs: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    after: set[str] = field(default_factory=set)
    many: bool = False


# Stages that the plan of an empty store does not call, with the stages that their inputs come from.
_UNPLANNED: dict[str, tuple[str, dict[str, str]]] = {
    "ablate": ("compare", {"curated": "curate"}),
    "characters": ("ingest", {"snapshot": "snapshot", "documents": "normalise", "measures": "measure"}),
    "legibility": (
        "ingest",
        {"segment": "extract", "documents": "normalise", "measures": "measure", "characters": "characters"},
    ),
    "evalset_leaks": ("prepare", {"curated": "curate", "overlaps": "evalset_overlap", "evalset": "evalset"}),
    "pairs": ("prepare", {"segment": "extract", "documents": "refine"}),
    "tokenise_pairs": ("prepare", {"pairs": "pairs", "documents": "refine", "tokenizer": "tokenizer"}),
    "answers": ("evaluate", {"checkpoint": "train", "evalset": "evalset"}),
    "evaluate_answers": ("evaluate", {"checkpoint": "train", "evalset": "evalset", "answers": "answers"}),
    "texts": ("evaluate", {}),
    "split": (
        "evaluate",
        {"snapshot": "snapshot", "curated": "curate", "documents": "refine", "measures": "measure"},
    ),
    "fresh": (
        "evaluate",
        {"snapshot": "snapshot", "curated": "curate", "known": "curate", "documents": "refine", "measures": "measure"},
    ),
    "gates": (
        "promote",
        {
            "checkpoint": "train",
            "evaluation": "evaluate",
            "champion": "evaluate",
            "champion_that_knew": "train",
            "leaks": "evalset_leaks",
            "quantised": "evaluate",
        },
    ),
}
_READ_BY = {"ablate": ("dataset", "curated"), "texts": ("evaluate", "evalset"), "split": ("evaluate", "evalset")}
_READ_BY |= {"tokenise_pairs": ("dataset", "tokens"), "evaluate_answers": ("gates", "evaluation")}
_READ_BY |= {"fresh": ("evaluate", "evalset"), "legibility": ("curate", "legibility")}
# A plan that does not know an input gives the artefact that it waits for in its place.
_STAND_INS = {("trace_index", "documents"), ("gram_overlap", "documents"), ("memorised", "texts")}


def wiring() -> dict[str, Wiring]:
    """Return every stage in the flows, by name.

    Raises:
        ValueError: if a stage is neither planned nor listed here, or has other inputs than those listed.
    """
    found = _planned()
    for stage, inputs in _STAND_INS:
        found[stage].inputs[inputs] = {"refine"}
        found[stage].after.add("train")
    found["generate"].inputs["parts"] = {"complete"}
    for stage, (flow, inputs) in _UNPLANNED.items():
        found[stage] = Wiring(flow, defaultdict(set, {name: {source} for name, source in inputs.items()}))
    for stage in ("legibility", "pairs", "tokenise_pairs"):
        found[stage].many = True
    found["refine"].inputs["legibility"].add("legibility")
    for stage, (reader, name) in _READ_BY.items():
        found[reader].inputs[name].add(stage)
    for stage in all_stages().values():
        if stage.name not in found or not set(found[stage.name].inputs) <= set(stage.input_names):
            raise ValueError(
                f"docs/stage_graph.py does not know where stage {stage.name} gets {stage.input_names} from"
            )
    return {stage: found[stage] for flow in FLOWS for stage in found if found[stage].flow == flow}


def _planned() -> dict[str, Wiring]:
    """Return the stages that a plan calls, with all that is optional switched on."""
    found: dict[str, Wiring] = {}
    find_or_make = Stage._find_or_make

    def note(stage: Stage, run: Run, calls: Sequence[Call], many: bool) -> list[ArtifactRef]:
        frame: Any = sys._getframe(1)
        while not frame.f_globals["__name__"].startswith("flows."):
            frame = frame.f_back
        here = found.setdefault(stage.name, Wiring(frame.f_globals["__name__"].removeprefix("flows."), many=many))
        for call in calls:
            here.after.update(ref.stage for ref in call.after)
            for name, value in call.inputs.items():
                if name in stage.input_names and isinstance(value, ArtifactRef | RefSet):
                    refs = value.refs if isinstance(value, RefSet) else (value,)
                    here.inputs[name].update(ref.stage for ref in refs)
        return find_or_make(stage, run, calls, many)

    def union(run: Run, refs: Sequence[ArtifactRef], *_: Any, **__: Any) -> RefSet:
        return RefSet(tuple(refs), "")  # all of them, and not only the first that a plan waits for

    patches = patch.object(Stage, "_find_or_make", note), patch.object(Run, "union", union)
    with TemporaryDirectory() as scratch, patches[0], patches[1]:
        folder, table = Path(scratch, "folder"), Path(scratch, "table.jsonl")
        folder.mkdir()
        (folder / "text.txt").write_text("A text.\n", encoding="utf-8")
        table.write_text(json.dumps({"text": "Another text."}) + "\n", encoding="utf-8")
        given = {"classifier.good": str(folder), "classifier.bad": str(folder), "mix.by": "kind"}
        settings = load_settings(None, {**given, "curate.evaluation_sets": str(folder)})
        run = Run(Home.from_environment(str(Path(scratch, "home"))), plan=True)
        plan_retraining(run, f"{folder}\ndocuments:{table}", settings)
        checkpoint, evalset = (ArtifactRef(stage, "", "") for stage in ("train", "evalset"))
        make_completions(run, settings, checkpoint, [Prompt("1", "A prompt")], after=(evalset,))
    return found


def stage_graph() -> str:
    """Return the picture of the graph as an SVG document."""
    stages = wiring()
    solid = {(source, name) for name, here in stages.items() for sources in here.inputs.values() for source in sources}
    dashed = {(source, name) for name, here in stages.items() for source in here.after} - solid
    edges = _reduced(solid | dashed)
    rank = _ranks(stages, edges)
    rows, chains = _rows(rank, edges)
    _untangle(rows, chains)
    middle = _columns(rows, chains)
    tops = _tops(stages, rank, len(rows))
    parts = []
    for flow, fill in FLOWS.items():
        own = [rank[name] for name, here in stages.items() if here.flow == flow]
        top, bottom = tops[min(own)] - 13, tops[max(own)] + TALL + 9
        parts.append(
            f'<rect x="8" y="{top:g}" width="{WIDTH - 16}" height="{bottom - top:g}" rx="8" fill="{FILLS[fill]}" '
            f'fill-opacity=".45"/>{text(20, top + 20, flow, "name", "start")}'
        )
    for chain in chains:
        ends = chain[0], chain[-1]
        points = [(middle[chain[0]], float(tops[rank[str(chain[0])]] + TALL))]
        for row, place in enumerate(chain[1:-1], start=rank[str(chain[0])] + 1):
            points += [(middle[place], tops[row]), (middle[place], tops[row] + TALL)]
        end = str(chain[-1])
        points.append((middle[end], tops[rank[end]] - (5 if stages[end].many else 1)))
        parts.append(curve(points, dashed=ends in dashed))
    for name, here in stages.items():
        left = middle[name] - BOX / 2
        parts.append(box(left, tops[rank[name]], BOX, TALL, [name], FLOWS[here.flow], stacked=here.many, first=""))
    bottom = tops[-1] + TALL + 34
    said = (
        "A double box: one artefact per segment, or per shard of prompts. Dashed: read for its settings. An arrow is "
    )
    parts.append(text(20, bottom, said + "left out where others lead the same way.", "small", "start"))
    return document("The stages, grouped by flow, and the artefacts that pass between them", WIDTH, bottom + 14, parts)


def _reduced(edges: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the edges that no longer path replaces."""
    after: dict[str, set[str]] = defaultdict(set)
    for source, target in edges:
        if source != target:
            after[source].add(target)

    def reached(name: str) -> set[str]:
        return set().union(*({other} | reached(other) for other in after[name])) if after.get(name) else set()

    return sorted(
        (source, target)
        for source, targets in list(after.items())
        for target in targets
        if not any(target in reached(other) for other in targets - {target})
    )


def _ranks(stages: Mapping[str, Wiring], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the row of each stage: below all that it reads, flow below flow."""
    rank: dict[str, int] = {}
    first = 0
    for flow in FLOWS:
        own = [name for name, here in stages.items() if here.flow == flow]
        sources = {name: [source for source, target in edges if target == name and source in own] for name in own}

        def depth(name: str, sources: Mapping[str, list[str]] = sources) -> int:
            return max((1 + depth(source, sources) for source in sources[name]), default=0)

        rank |= {name: first + depth(name) for name in own}
        first = 1 + max(rank[name] for name in own)
    return rank


Place = str | tuple[str, str, int]  # a stage, or an arrow where it passes a row
Chain = list[Place]


def _rows(rank: Mapping[str, int], edges: Sequence[tuple[str, str]]) -> tuple[list[list[Place]], list[Chain]]:
    """Return the places of each row, and each arrow as a chain of places in rows that follow one another."""
    rows: list[list[Place]] = [[] for _ in range(1 + max(rank.values()))]
    for name, row in rank.items():
        rows[row].append(name)
    chains: list[Chain] = []
    for source, target in edges:
        passed: Chain = [(source, target, row) for row in range(rank[source] + 1, rank[target])]
        for row, place in enumerate(passed, start=rank[source] + 1):
            rows[row].append(place)
        chains.append([source, *passed, target])
    return rows, chains


def _links(chains: Sequence[Chain]) -> tuple[dict[Place, list[Place]], dict[Place, list[Place]]]:
    up: dict[Place, list[Place]] = defaultdict(list)
    down: dict[Place, list[Place]] = defaultdict(list)
    for chain in chains:
        for one, other in pairwise(chain):
            down[one].append(other)
            up[other].append(one)
    return up, down


def _untangle(rows: list[list[Place]], chains: Sequence[Chain]) -> None:
    """Order each row by the mean place of the neighbours above and below; keeps the order with the fewest crossings."""
    up, down = _links(chains)
    best = [list(row) for row in rows]
    fewest = _crossings(rows, down)
    for turn in range(40):
        for row in rows if turn % 2 == 0 else reversed(rows):
            near = up if turn % 2 == 0 else down
            at = {place: number for other in rows for number, place in enumerate(other)}
            mean = {p: sum(at[n] for n in near[p]) / len(near[p]) if near[p] else float(at[p]) for p in row}
            row.sort(key=lambda place: mean[place])
        found = _crossings(rows, down)
        if found < fewest:
            fewest, best = found, [list(row) for row in rows]
    rows[:] = best


def _crossings(rows: Sequence[Sequence[Place]], down: Mapping[Place, list[Place]]) -> int:
    at = {place: number for row in rows for number, place in enumerate(row)}
    total = 0
    for row in rows:
        ends = [(at[place], at[other]) for place in row for other in down.get(place, ())]
        total += sum((a - c) * (b - d) < 0 for number, (a, b) in enumerate(ends) for c, d in ends[:number])
    return total


def _columns(rows: Sequence[Sequence[Place]], chains: Sequence[Chain]) -> dict[Place, float]:
    """Return the middle of each place, near the mean of its neighbours and at a distance from the next in its row."""
    up, down = _links(chains)
    near = {place: [*up[place], *down[place]] for row in rows for place in row}
    near |= {place: chain for chain in chains for place in chain[1:-1]}  # an arrow runs straight where it can
    half = {place: BOX / 2 if isinstance(place, str) else THIN / 2 for row in rows for place in row}
    middle: dict[Place, float] = {}
    for row in rows:
        step = (WIDTH - LABELS) / len(row)
        middle |= {place: LABELS + step * (number + 0.5) for number, place in enumerate(row)}
    for turn in range(60):
        for row in rows if turn % 2 == 0 else reversed(rows):
            offsets = [0.0]
            for one, other in pairwise(row):
                offsets.append(offsets[-1] + half[one] + half[other] + BESIDE)
            wanted = []
            for place, offset in zip(row, offsets, strict=True):
                around = near[place] or [place]
                wanted.append(sum(middle[other] for other in around) / len(around) - offset)
            low = LABELS + half[row[0]]
            high = WIDTH - 22 - half[row[-1]] - offsets[-1]
            for place, start, offset in zip(row, _rising(wanted), offsets, strict=True):
                middle[place] = round(max(low, min(high, start)) + offset, 1)
    return middle


def _rising(wanted: Sequence[float]) -> list[float]:
    """Return the numbers that do not fall and are nearest to those wanted (isotonic regression)."""
    blocks: list[list[float]] = []  # sum, number
    for value in wanted:
        blocks.append([value, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, number = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += number
    return [total / number for total, number in blocks for _ in range(int(number))]


def _tops(stages: Mapping[str, Wiring], rank: Mapping[str, int], n_rows: int) -> list[float]:
    """Return the upper edge of each row; between two flows there is more room."""
    flow_of = {rank[name]: here.flow for name, here in stages.items()}
    tops = [24.0]
    for row in range(1, n_rows):
        tops.append(tops[-1] + ROW - 4 + (12 if flow_of[row] != flow_of[row - 1] else 0))
    return tops
