"""Policy: which documents are refused, by thresholds on what was measured.

Cheap and separate from measuring, so that a changed threshold measures nothing again. A preset gives every threshold;
one that is set by itself takes the place of the preset's. `RULES` says what each threshold compares and whose it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import make_dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic.dataclasses import dataclass

from tasks.core.option import STRICT, option

if TYPE_CHECKING:
    import pyarrow as pa

UNKNOWN_LICENCE = "unknown"
UNSPACED_LIMIT = 0.3  # share of letters of scripts without spaces above which counts of words mean nothing
REPETITION_CHARS = 1_000  # a text shorter than this may well compress to nothing
SPOKEN_STOP_WORDS = 2  # English stop words that dummy text does not hold

Scope = Literal["all", "prose", "code", "spaced", "english", "long", "dummy"]


class Rule(NamedTuple):
    """One threshold.

    Attributes:
        name: field of the settings; its beginning says whether documents below (`min_`), above (`max_`) or with a
            mark (`drop_`) are refused.
        measure: column of the measures.
        code: reason for programs.
        what: reason for people: what the measured value is.
        source: whose rule it is.
        scope: documents it applies to.
        kind: type of the threshold.
    """

    name: str
    measure: str
    code: str
    what: str
    source: str
    scope: Scope = "all"
    kind: type = float


class Check(NamedTuple):
    """A rule that is on.

    Attributes:
        below: whether it refuses what lies below the threshold, not above.
    """

    rule: Rule
    threshold: float
    below: bool


_OURS = "this project's: what is certainly no text"
_GOPHER = "Gopher, Rae et al. 2021, appendix A1.1"
_GOPHER_TABLE = "Gopher, Rae et al. 2021, table A1"
_C4 = "C4, Raffel et al. 2020, section 2.2"
_FINEWEB = "FineWeb, Penedo et al. 2024, section 3.4"
_STACK = "The Stack, Kocetkov et al. 2022, and Codex, Chen et al. 2021, section 3.1"
_STARCODER = "StarCoder, Li et al. 2023, section 3"

RULES: tuple[Rule, ...] = (
    Rule("min_chars", "n_chars", "too_short", "characters after normalising", _OURS, kind=int),
    Rule("min_distinct_share", "distinct_share", "repetitive", "of its runs of five words are distinct", _OURS),
    Rule("min_compression_ratio", "compression_ratio", "repetitive", "of its size are left when compressed", _OURS,
         "long"),
    Rule("max_blob_share", "blob_share", "encoded_data", "of its characters are base64 or hexadecimal data", _OURS,
         "long"),
    Rule("max_lorem_ratio", "lorem_ratio", "dummy_text", "of its words begin 'lorem ipsum'", _OURS, "dummy"),
    Rule("drop_minified", "minified", "minified", "minified code: long lines with hardly a space",
         _OURS, "code", kind=bool),
    Rule("drop_generated", "generated", "generated", "code that says that a program wrote it",
         _STARCODER, "code", kind=bool),
    Rule("min_words", "n_words", "few_words", "words", _GOPHER, "spaced", kind=int),
    Rule("max_words", "n_words", "many_words", "words", _GOPHER, "spaced", kind=int),
    Rule("min_mean_word_length", "mean_word_length", "word_length", "characters a word on average", _GOPHER, "spaced"),
    Rule("max_mean_word_length", "mean_word_length", "word_length", "characters a word on average", _GOPHER, "spaced"),
    Rule("max_hash_word_ratio", "hash_word_ratio", "symbols", "hash signs a word", _GOPHER, "spaced"),
    Rule("max_ellipsis_word_ratio", "ellipsis_word_ratio", "symbols", "ellipses a word", _GOPHER, "spaced"),
    Rule("max_bullet_line_share", "bullet_line_share", "bullets", "of its lines begin with a bullet", _GOPHER, "prose"),
    Rule("max_ellipsis_line_share", "ellipsis_line_share", "ellipses", "of its lines end in an ellipsis", _GOPHER,
         "prose"),
    Rule("min_alpha_word_share", "alpha_word_share", "few_letters", "of its words have a letter", _GOPHER, "spaced"),
    Rule("min_stop_words", "stop_words", "stop_words", "of eight English stop words occur",
         _GOPHER, "english", kind=int),
    Rule("max_duplicate_line_share", "duplicate_line_share", "duplicate_lines",
         "of its lines are repeated", _GOPHER_TABLE, "prose"),
    Rule("max_duplicate_line_char_share", "duplicate_line_char_share", "duplicate_lines",
         "of its characters are in repeated lines", f"{_FINEWEB}: 0.1, stricter than Gopher's 0.2", "prose"),
    Rule("max_duplicate_paragraph_share", "duplicate_paragraph_share", "duplicate_paragraphs",
         "of its paragraphs are repeated", _GOPHER_TABLE, "prose"),
    Rule("max_duplicate_paragraph_char_share", "duplicate_paragraph_char_share", "duplicate_paragraphs",
         "of its characters are in repeated paragraphs", _GOPHER_TABLE, "prose"),
    *(
        Rule(f"max_top_{n}gram_char_share", f"top_{n}gram_char_share", "repeated_phrase",
             f"of its characters are in its most frequent run of {n} words", _GOPHER_TABLE, "spaced")
        for n in (2, 3, 4)
    ),
    *(
        Rule(f"max_duplicate_{n}gram_char_share", f"duplicate_{n}gram_char_share", "repeated_phrases",
             f"of its characters are in repeated runs of {n} words", _GOPHER_TABLE, "spaced")
        for n in (5, 6, 7, 8, 9, 10)
    ),
    Rule("min_sentences", "n_sentences", "few_sentences", "sentences", _C4, "spaced", kind=int),
    Rule("max_curly_brackets", "curly_brackets", "curly_brackets", "curly brackets", _C4, "prose", kind=int),
    Rule("max_lorem_ipsum", "lorem_ipsum", "dummy_text", "times 'lorem ipsum'", _C4, "prose", kind=int),
    Rule("max_javascript", "javascript", "javascript", "times 'javascript'",
         f"{_C4} (there for lines)", "prose", kind=int),
    Rule("max_policy_phrases", "policy_phrases", "policy_phrases", "phrases like 'privacy policy'",
         f"{_C4} (there for lines)", "prose", kind=int),
    Rule("max_few_words_line_share", "few_words_line_share", "short_lines", "of its lines have fewer than five words",
         f"{_C4} (there for lines)", "spaced"),
    Rule("min_terminal_line_share", "terminal_line_share", "no_sentences", "of its lines end in terminal punctuation",
         _FINEWEB, "prose"),
    Rule("max_short_line_share", "short_line_share", "short_lines", "of its lines have at most 30 characters",
         _FINEWEB, "spaced"),
    Rule("max_list_ratio", "list_ratio", "list", "line feeds a word", f"{_FINEWEB}, published filter", "spaced"),
    Rule("max_mean_line_length", "mean_line_length", "long_lines", "characters a line on average", _STACK, "code"),
    Rule("max_longest_line", "longest_line", "long_lines", "characters in its longest line", _STACK, "code", kind=int),
    Rule("min_alnum_share", "alnum_share", "few_letters", "of its characters are letters and digits", _STACK, "code"),
    Rule("min_comment_share", "comment_share", "few_comments", "of its lines are comments", _STARCODER, "code"),
    Rule("max_comment_share", "comment_share", "many_comments", "of its lines are comments", _STARCODER, "code"),
    Rule("min_language_confidence", "language_confidence", "language_unsure", "is how sure its language is",
         f"{_FINEWEB} (there 0.65 of another classifier)", "prose"),
)  # fmt: skip

_GENTLE: dict[str, float | bool] = {
    "min_chars": 1,
    "min_distinct_share": 0.01,
    "min_compression_ratio": 0.02,
    "max_blob_share": 0.5,
    "max_lorem_ratio": 0.01,
    "drop_minified": True,
}
_WEB: dict[str, float | bool] = {
    **_GENTLE,
    "min_words": 50,
    "max_words": 100_000,
    "min_mean_word_length": 3,
    "max_mean_word_length": 10,
    "max_hash_word_ratio": 0.1,
    "max_ellipsis_word_ratio": 0.1,
    "max_bullet_line_share": 0.9,
    "max_ellipsis_line_share": 0.3,
    "min_alpha_word_share": 0.8,
    "min_stop_words": 2,
    "max_duplicate_line_share": 0.3,
    "max_duplicate_line_char_share": 0.1,
    "max_duplicate_paragraph_share": 0.3,
    "max_duplicate_paragraph_char_share": 0.2,
    "max_top_2gram_char_share": 0.2,
    "max_top_3gram_char_share": 0.18,
    "max_top_4gram_char_share": 0.16,
    "max_duplicate_5gram_char_share": 0.15,
    "max_duplicate_6gram_char_share": 0.14,
    "max_duplicate_7gram_char_share": 0.13,
    "max_duplicate_8gram_char_share": 0.12,
    "max_duplicate_9gram_char_share": 0.11,
    "max_duplicate_10gram_char_share": 0.1,
    "min_sentences": 3,
    "max_curly_brackets": 0,
    "max_lorem_ipsum": 0,
    "min_terminal_line_share": 0.12,
    "max_short_line_share": 0.67,
    "max_list_ratio": 0.3,
}
_CODE: dict[str, float | bool] = {
    **_GENTLE,
    "drop_generated": True,
    "max_mean_line_length": 100,
    "max_longest_line": 1_000,
    "min_alnum_share": 0.25,
    "max_comment_share": 0.8,
}
PRESETS: dict[str, dict[str, float | bool]] = {"off": {}, "gentle": _GENTLE, "web": _WEB, "code": _CODE}


def _threshold(rule: Rule) -> tuple[str, object, Any]:
    """Return the field of the settings that sets a rule's threshold."""
    if rule.kind is bool:
        return rule.name, bool | None, option(None, f"Refuse {rule.what}.")
    side = "below" if rule.name.startswith("min_") else "above"
    return rule.name, rule.kind | None, option(None, f"Refuse documents with N {side} this: N {rule.what}.", ge=0)


_Thresholds: Any = make_dataclass("_Thresholds", map(_threshold, RULES), frozen=True)


@dataclass(frozen=True, config=STRICT)
class PolicySettings(_Thresholds):
    """Refusal of documents by thresholds on their measures; one that is not given is the preset's."""

    preset: Literal["off", "gentle", "web", "code"] = option(
        "gentle",
        "Thresholds to start from: `off` has none; `gentle`, for people's own documents, refuses only what is "
        "certainly no text; `web` has those of Gopher, C4 and FineWeb; `code` is `gentle` with the rules of The "
        "Stack and StarCoder for source code.",
    )
    languages: str = option(
        "",
        "ISO 639-1 codes of the languages to keep, comma separated; empty keeps all, `und` is undetermined. Code "
        "is kept.",
    )
    licences: str = option(
        "",
        "SPDX identifiers of the licences to keep, comma separated; empty keeps all, `unknown` stands for "
        "documents without one.",
    )
    min_classifier_score: float = option(
        0.0, "Refuse documents with a lower score of the classifier; 0 refuses none.", ge=0, le=1
    )

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """The rules that are on, with their thresholds."""
        preset = PRESETS[self.preset]
        checks = []
        for rule in RULES:
            own = getattr(self, rule.name)
            threshold = preset.get(rule.name) if own is None else own
            if rule.name.startswith("drop_"):
                threshold = 0 if threshold else None
            if threshold is not None:
                checks.append(Check(rule, threshold, rule.name.startswith("min_")))
        return tuple(checks)


def refusals(measures: Mapping[str, Any], settings: PolicySettings) -> tuple[str, str] | None:
    """Why a document is refused.

    Args:
        measures: row of `storage.schemas.MEASURES`; `licence` may come from elsewhere, `classifier_score` may be added.

    Returns:
        A code and a sentence with the measured value and the threshold, of the first rule that refuses it; None if the
        document may stay.
    """
    scopes = _scopes(measures)
    for rule, threshold, below in settings.checks:
        if rule.scope not in scopes:
            continue
        value = _lorem_ratio(measures) if rule.measure == "lorem_ratio" else measures[rule.measure]
        if value < threshold if below else value > threshold:
            return rule.code, _sentence(rule, value, threshold, below)
    return _by_choice(measures, settings)


def may_be_refused(measures: pa.Table, settings: PolicySettings) -> list[int]:
    """Places of the rows that `refusals` has to look at; it would let all others stay.

    Column by column this takes a hundredth of the time, and few documents cross a threshold.

    Args:
        measures: with the columns `measures_needed`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not measures.num_rows:
        return []  # Arrow crashes where a column has no chunk
    if settings.languages.strip() or settings.licences.strip() or settings.min_classifier_score > 0:
        return list(range(measures.num_rows))
    places: set[int] = set()
    for rule, threshold, below in settings.checks:
        # without the scope of a rule, and the ratio without its divisor: rather one row too many
        column = measures.column("lorem_ipsum" if rule.measure == "lorem_ratio" else rule.measure)
        least = 0 if rule.measure == "lorem_ratio" else threshold
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        crossed = pc.less(column, least) if below else pc.greater(column, least)
        places.update(pc.indices_nonzero(crossed.combine_chunks().fill_null(True)).to_pylist())
    return sorted(places)


_ASKED = ("doc_id", "kind", "language", "language_confidence", "licence", "n_chars", "stop_words", "unspaced_share")


def measures_needed(settings: PolicySettings) -> list[str]:
    """Columns of the measures that `refusals` reads under these settings: a few of sixty."""
    needed = {check.rule.measure for check in settings.checks} | set(_ASKED)
    if "lorem_ratio" in needed:
        needed = needed - {"lorem_ratio"} | {"lorem_ipsum", "n_words"}
    return sorted(needed)


def _scopes(measures: Mapping[str, Any]) -> set[Scope]:
    """The kinds of rules that apply to a document."""
    scopes: set[Scope] = {"all"}
    if measures["n_chars"] >= REPETITION_CHARS:
        scopes.add("long")
    if measures["kind"] == "code":
        scopes.add("code")
        return scopes
    scopes.add("prose")
    if measures["stop_words"] < SPOKEN_STOP_WORDS:
        scopes.add("dummy")
    if measures["unspaced_share"] <= UNSPACED_LIMIT:
        scopes.add("spaced")
    if measures["language"] == "en":
        scopes.add("english")
    return scopes


def _lorem_ratio(measures: Mapping[str, Any]) -> float:
    words = measures["n_words"]
    return measures["lorem_ipsum"] / words if words else 0.0


def _sentence(rule: Rule, value: float, threshold: float, below: bool) -> str:
    if rule.name.startswith("drop_"):
        return f"{rule.what} ({rule.name} is on)"
    place = "fewer than" if below else "more than"
    return f"{_shown(rule, value)} {rule.what}, {place} {_shown(rule, threshold)}"


def _shown(rule: Rule, value: float) -> str:
    if rule.measure.endswith(("_share", "_confidence", "compression_ratio", "lorem_ratio")):
        return f"{value:.4g}" if 0 < value < 0.0001 else f"{value:.2%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _by_choice(measures: Mapping[str, Any], settings: PolicySettings) -> tuple[str, str] | None:
    """Languages, licences and the classifier."""
    languages = _listed(settings.languages.lower())
    if languages and measures["kind"] != "code" and measures["language"] not in languages:
        language, sure = measures["language"], measures["language_confidence"]
        return "language", f"its language is {language} ({sure:.0%} sure), expected {_either(languages)}"
    licences = _listed(settings.licences)
    if licences and not _is_allowed(measures["licence"], licences):
        found = measures["licence"] or UNKNOWN_LICENCE
        return "licence", f"its licence is {found}, expected {_either(licences)}"
    score = measures.get("classifier_score")
    if score is not None and score < settings.min_classifier_score:
        return "low_score", f"the classifier gives it {score:.2%}, less than {settings.min_classifier_score:.2%}"
    return None


@lru_cache(maxsize=64)
def _listed(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _either(items: tuple[str, ...]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} or {items[-1]}"


@lru_cache(maxsize=4_096)
def _is_allowed(licence: str | None, allowed: tuple[str, ...]) -> bool:
    """Return whether an SPDX expression can be met with licences from a list.

    An exception (`WITH`) grants more, so the licence itself decides.
    """
    known = {item.lower() for item in allowed}
    if not licence:
        return UNKNOWN_LICENCE in known
    if licence.lower() in known:
        return True
    from license_expression import ExpressionError, LicenseWithExceptionSymbol, Licensing

    rules = Licensing()

    def is_met(expression: Any) -> bool:
        if isinstance(expression, rules.OR):
            return any(map(is_met, expression.args))
        if isinstance(expression, rules.AND):
            return all(map(is_met, expression.args))
        symbol = expression.license_symbol if isinstance(expression, LicenseWithExceptionSymbol) else expression
        return str(symbol.key).lower() in known

    try:
        return is_met(rules.parse(licence))
    except ExpressionError:
        return False
