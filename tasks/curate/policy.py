"""Policy: thresholds on measures, which decide what documents are refused.

Separate from measuring, so that a changed threshold computes no measures again. A preset gives every threshold; a
setting overrides it. `RULES` has the measure, the source and the presets of each threshold; `refusal` combines the
active ones in one SQL expression.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import make_dataclass
from typing import Any, Literal, NamedTuple

from pydantic.dataclasses import dataclass

from storage.catalog import quoted
from tasks.core.option import STRICT, option
from tasks.sources.address import DATE

UNKNOWN_LICENCE = "unknown"
UNSPACED_LIMIT = 0.3  # share of letters of scripts without spaces above which word counts are meaningless
REPETITION_CHARS = 1_000  # shorter texts are not judged by their repetition
SPOKEN_STOP_WORDS = 2  # dummy text has fewer English stop words

Scope = Literal["all", "prose", "code", "spaced", "english", "long", "dummy"]
_SCOPES: dict[Scope, str] = {
    "all": "true",
    "long": f"n_chars >= {REPETITION_CHARS}",
    "code": "kind = 'code'",
    "prose": "kind <> 'code'",
    "dummy": f"kind <> 'code' and stop_words < {SPOKEN_STOP_WORDS}",
    "spaced": f"kind <> 'code' and unspaced_share <= {UNSPACED_LIMIT}",
    "english": "kind <> 'code' and language = 'en'",
}


class Rule(NamedTuple):
    """One threshold.

    Attributes:
        name: Field of the settings; its prefix shows whether documents below the threshold (`min_`), above it (`max_`)
            or with a flag (`drop_`) are refused.
        measure: Column of the measures, or an SQL expression over them.
        code: Reason for programs.
        what: Meaning of the measured value, for the reason in words.
        source: Origin of the rule.
        scope: Documents it applies to.
        kind: Type of the threshold.
        gentle, web, source_code: Threshold in the preset `gentle`, and in `web` and `code`, which include `gentle`;
            True for a flag, None for none.
    """

    name: str
    measure: str
    code: str
    what: str
    source: str
    scope: Scope = "all"
    kind: type = float
    gentle: float | None = None
    web: float | None = None
    source_code: float | None = None


_LOREM_RATIO = "coalesce(lorem_ipsum / nullif(n_words, 0), 0)"

_OURS = "this project's: what is certainly no text"
_GOPHER = "Gopher, Rae et al. 2021, appendix A1.1"
_GOPHER_TABLE = "Gopher, Rae et al. 2021, table A1"
_C4 = "C4, Raffel et al. 2020, section 2.2"
_FINEWEB = "FineWeb, Penedo et al. 2024, section 3.4"
_STACK = "The Stack, Kocetkov et al. 2022, and Codex, Chen et al. 2021, section 3.1"
_STARCODER = "StarCoder, Li et al. 2023, section 3"

RULES: tuple[Rule, ...] = (
    Rule("min_chars", "n_chars", "too_short", "characters after normalising", _OURS, kind=int, gentle=1),
    Rule("min_distinct_share", "distinct_share", "repetitive", "of its runs of five words are distinct", _OURS,
         gentle=0.01),
    Rule("min_compression_ratio", "compression_ratio", "repetitive", "of its size are left when compressed", _OURS,
         "long", gentle=0.02),
    Rule("max_blob_share", "blob_share", "encoded_data", "of its characters are base64 or hexadecimal data", _OURS,
         "long", gentle=0.5),
    Rule("max_lorem_ratio", _LOREM_RATIO, "dummy_text", "of its words begin 'lorem ipsum'", _OURS, "dummy",
         gentle=0.01),
    Rule("max_error_rate", "error_rate", "illegible", "of its characters are misread, by estimate", _OURS, gentle=0.12),
    Rule("drop_minified", "minified", "minified", "minified code: long lines with hardly a space", _OURS, "code",
         kind=bool, gentle=True),
    Rule("drop_generated", "generated", "generated", "code that says that a program wrote it", _STARCODER, "code",
         kind=bool, source_code=True),
    Rule("min_words", "n_words", "few_words", "words", _GOPHER, "spaced", kind=int, web=50),
    Rule("max_words", "n_words", "many_words", "words", _GOPHER, "spaced", kind=int, web=100_000),
    Rule("min_mean_word_length", "mean_word_length", "word_length", "characters a word on average", _GOPHER, "spaced",
         web=3),
    Rule("max_mean_word_length", "mean_word_length", "word_length", "characters a word on average", _GOPHER, "spaced",
         web=10),
    Rule("max_hash_word_ratio", "hash_word_ratio", "symbols", "hash signs a word", _GOPHER, "spaced", web=0.1),
    Rule("max_ellipsis_word_ratio", "ellipsis_word_ratio", "symbols", "ellipses a word", _GOPHER, "spaced", web=0.1),
    Rule("max_bullet_line_share", "bullet_line_share", "bullets", "of its lines begin with a bullet", _GOPHER,
         "prose", web=0.9),
    Rule("max_ellipsis_line_share", "ellipsis_line_share", "ellipses", "of its lines end in an ellipsis", _GOPHER,
         "prose", web=0.3),
    Rule("min_alpha_word_share", "alpha_word_share", "few_letters", "of its words have a letter", _GOPHER, "spaced",
         web=0.8),
    Rule("min_stop_words", "stop_words", "stop_words", "of eight English stop words occur", _GOPHER, "english",
         kind=int, web=2),
    Rule("max_duplicate_line_share", "duplicate_line_share", "duplicate_lines", "of its lines are repeated",
         _GOPHER_TABLE, "prose", web=0.3),
    Rule("max_duplicate_line_char_share", "duplicate_line_char_share", "duplicate_lines",
         "of its characters are in repeated lines", f"{_FINEWEB}: 0.1, stricter than Gopher's 0.2", "prose", web=0.1),
    Rule("max_duplicate_paragraph_share", "duplicate_paragraph_share", "duplicate_paragraphs",
         "of its paragraphs are repeated", _GOPHER_TABLE, "prose", web=0.3),
    Rule("max_duplicate_paragraph_char_share", "duplicate_paragraph_char_share", "duplicate_paragraphs",
         "of its characters are in repeated paragraphs", _GOPHER_TABLE, "prose", web=0.2),
    *(
        Rule(f"max_top_{n}gram_char_share", f"top_{n}gram_char_share", "repeated_phrase",
             f"of its characters are in its most frequent run of {n} words", _GOPHER_TABLE, "spaced", web=threshold)
        for n, threshold in ((2, 0.2), (3, 0.18), (4, 0.16))
    ),
    *(
        Rule(f"max_duplicate_{n}gram_char_share", f"duplicate_{n}gram_char_share", "repeated_phrases",
             f"of its characters are in repeated runs of {n} words", _GOPHER_TABLE, "spaced", web=threshold)
        for n, threshold in ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.1))
    ),
    Rule("min_sentences", "n_sentences", "few_sentences", "sentences", _C4, "spaced", kind=int, web=3),
    Rule("max_curly_brackets", "curly_brackets", "curly_brackets", "curly brackets", _C4, "prose", kind=int, web=0),
    Rule("max_lorem_ipsum", "lorem_ipsum", "dummy_text", "times 'lorem ipsum'", _C4, "prose", kind=int, web=0),
    Rule("max_javascript", "javascript", "javascript", "times 'javascript'", f"{_C4} (there for lines)", "prose",
         kind=int),
    Rule("max_policy_phrases", "policy_phrases", "policy_phrases", "phrases like 'privacy policy'",
         f"{_C4} (there for lines)", "prose", kind=int),
    Rule("max_few_words_line_share", "few_words_line_share", "short_lines", "of its lines have fewer than five words",
         f"{_C4} (there for lines)", "spaced"),
    Rule("min_terminal_line_share", "terminal_line_share", "no_sentences", "of its lines end in terminal punctuation",
         _FINEWEB, "prose", web=0.12),
    Rule("max_short_line_share", "short_line_share", "short_lines", "of its lines have at most 30 characters",
         _FINEWEB, "spaced", web=0.67),
    Rule("max_list_ratio", "list_ratio", "list", "line feeds a word", f"{_FINEWEB}, published filter", "spaced",
         web=0.3),
    Rule("max_mean_line_length", "mean_line_length", "long_lines", "characters a line on average", _STACK, "code",
         source_code=100),
    Rule("max_longest_line", "longest_line", "long_lines", "characters in its longest line", _STACK, "code", kind=int,
         source_code=1_000),
    Rule("min_alnum_share", "alnum_share", "few_letters", "of its characters are letters and digits", _STACK, "code",
         source_code=0.25),
    Rule("min_comment_share", "comment_share", "few_comments", "of its lines are comments", _STARCODER, "code"),
    Rule("max_comment_share", "comment_share", "many_comments", "of its lines are comments", _STARCODER, "code",
         source_code=0.8),
    Rule("min_language_confidence", "language_confidence", "language_unsure", "is how sure its language is",
         f"{_FINEWEB} (there 0.65 of another classifier)", "prose"),
)  # fmt: skip


def _preset(*columns: str) -> dict[str, float]:
    values = {rule.name: [getattr(rule, column) for column in columns] for rule in RULES}
    return {name: value for name, own in values.items() for value in own if value is not None}


PRESETS = {
    "off": _preset(),
    "gentle": _preset("gentle"),
    "web": _preset("gentle", "web"),
    "code": _preset("gentle", "source_code"),
}


def _threshold(rule: Rule) -> tuple[str, object, Any]:
    """Return name, type and default of the settings' field for a rule."""
    if rule.kind is bool:
        return rule.name, bool | None, option(None, f"Refuse {rule.what}.")
    side = "below" if rule.name.startswith("min_") else "above"
    return rule.name, rule.kind | None, option(None, f"Refuse documents with N {side} this: N {rule.what}.", ge=0)


_Thresholds: Any = make_dataclass("_Thresholds", map(_threshold, RULES), frozen=True)


@dataclass(frozen=True, config=STRICT)
class PolicySettings(_Thresholds):
    """Refusal of documents by thresholds on their measures; a threshold that is not given is that of the preset."""

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
    before: str | int = option(  # a year alone is read as a number
        "", "Keep only documents whose date is known and before this one, such as 1914 or 1914-08."
    )
    after: str | int = option("", "Keep only documents whose date is known and not before this one.")
    min_classifier_score: float = option(
        0.0, "Refuse documents with a lower score of the classifier; 0 refuses none.", ge=0, le=1
    )

    def __post_init__(self) -> None:
        for name in ("before", "after"):
            if (date := str(getattr(self, name))) and not re.fullmatch(DATE, date):
                raise ValueError(f"policy.{name} is {date!r}, expected a date such as 1914, 1914-08 or 1914-08-04")

    def thresholds(self) -> Iterator[tuple[Rule, float]]:
        """Yield the active rules with their thresholds; 0 for a flag."""
        preset = PRESETS[self.preset]
        for rule in RULES:
            own = getattr(self, rule.name)
            threshold = preset.get(rule.name) if own is None else own
            if threshold is not None and (rule.kind is not bool or threshold):
                yield rule, 0 if rule.kind is bool else threshold


def refusal(settings: PolicySettings, licences: Collection[str | None]) -> str:
    """Return an SQL expression for the reason why a document is refused, from the first rule that refuses it.

    Args:
        licences: All licences of the documents, with None if a document has none.

    Returns:
        An expression over the columns of `storage.schemas.MEASURES`, `licence` (which may be that of a folder), and
        `date`, `classifier_score` and `error_rate` (which may be null): a struct of `code` and `reason`, a sentence
        with the measured value and the threshold; null for a document that is kept.
    """
    cases = [_case(rule, threshold) for rule, threshold in settings.thresholds()]
    if languages := _listed(settings.languages.lower()):
        sentence = (
            "'its language is ' || language || format(' ({:.0f}% sure), expected ', 100 * language_confidence) || "
            + quoted(_either(languages))
        )
        cases.append((f"kind <> 'code' and language not in ({_literals(languages)})", "language", sentence))
    if listed := _listed(settings.licences):
        refused = [found or "" for found in licences if not _is_allowed(found, listed)]
        sentence = (
            f"'its licence is ' || coalesce(licence, '{UNKNOWN_LICENCE}') || {quoted(f', expected {_either(listed)}')}"
        )
        if refused:
            cases.append((f"coalesce(licence, '') in ({_literals(refused)})", "licence", sentence))
    latest = "date || substr('-12-31', length(date) - 3)"  # a year may be its last day
    bounds = ((str(settings.before), "before", f"{latest} >="), (str(settings.after), "not before", "date <"))
    for wanted, side, refused_if in bounds:
        if wanted:
            cases.append(("date is null", "undated", quoted(f"it has no date, expected one {side} {wanted}")))
            sentence = f"'its date is ' || date || {quoted(f', expected one {side} {wanted}')}"
            cases.append((f"{refused_if} {quoted(wanted)}", "date", sentence))
    least = settings.min_classifier_score
    sentence = f"format('the classifier gives it {{:.2f}}%, less than {least:.2%}', 100 * classifier_score)"
    cases.append((f"classifier_score < {_double(least)}", "low_score", sentence))
    whens = "".join(f" when {refuses} then {{'code': '{code}', 'reason': {why}}}" for refuses, code, why in cases)
    return f"case{whens} end"


def _case(rule: Rule, threshold: float) -> tuple[str, str, str]:
    """Return condition, code and reason of a rule, in SQL."""
    if rule.kind is bool:
        condition, sentence = rule.measure, quoted(f"{rule.what} ({rule.name} is on)")
    else:
        sign, place = ("<", "fewer than") if rule.name.startswith("min_") else (">", "more than")
        condition = f"{rule.measure} {sign} {_double(threshold)}"
        limit = _shown(rule, f"{threshold}::bigint" if rule.kind is int else _double(threshold))
        sentence = f"{_shown(rule, rule.measure)} || {quoted(f' {rule.what}, {place} ')} || {limit}"
    return f"{_SCOPES[rule.scope]} and {condition}", rule.code, sentence


def _double(value: float) -> str:
    """Return SQL for a number as a double; without the cast it would be a decimal."""
    return f"'{value!r}'::double"


def _is_share(rule: Rule) -> bool:
    return rule.measure == _LOREM_RATIO or rule.measure.endswith(
        ("_share", "_confidence", "_rate", "compression_ratio")
    )


def _shown(rule: Rule, value: str) -> str:
    """Return SQL that formats a measured value or a threshold for a reason."""
    if _is_share(rule):
        return f"if({value} > 0 and {value} < 0.0001, format('{{:.4g}}', {value}), format('{{:.2f}}%', 100 * {value}))"
    return f"format('{{:,}}', {value})" if rule.kind is int else f"format('{{:g}}', {value})"


def _literals(texts: Collection[str]) -> str:
    return ", ".join(map(quoted, texts))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _either(items: tuple[str, ...]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} or {items[-1]}"


def _is_allowed(licence: str | None, allowed: tuple[str, ...]) -> bool:
    """Return True if an SPDX expression can be satisfied with licences of a list.

    Exceptions (`WITH`) are ignored, as they grant more.
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
