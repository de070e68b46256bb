"""Marks in a source text that only one programming language leaves, for suffixes that several languages share.

Each rule is a handful of patterns that are anchored to the beginning of a line and hardly occur in the other languages
of that suffix. A text that shows none of them keeps no language: an unknown one does less harm than a wrong one. The
rules look at the head of a file only, so they cost the same for every size.
"""

from __future__ import annotations

import re

from tasks.readers.languages import KERNELS, SHEBANGS

_SHEBANG = re.compile(
    r"#!\s{0,9}(?:[^\s]*/)?(?:env\s+(?:-\S+\s+|\w+=\S*\s+)*)?"
    r"([A-Za-z][A-Za-z-]*[A-Za-z]|[A-Za-z]+\d?)"
)
_EMACS_MODE = re.compile(
    r"-\*-\s{0,9}(?:[^\n]{0,200}?\bmode:\s{0,9})?([A-Za-z+#-]{1,30})\s{0,9}(?:;[^\n]{0,200})?-\*-", re.I
)
_VIM_MODE = re.compile(r"\bvim?:[^\n]{0,200}?\b(?:ft|filetype|syntax)=([A-Za-z+#-]{1,30})")
_MODE_LINES = 5  # Editors look for their mode lines in the first and the last few lines.


def _rule(*patterns: str) -> re.Pattern[str]:
    """Any of these patterns at the beginning of a line, behind at most some indentation."""
    return re.compile("^[ \t]{0,40}(?:" + "|".join(patterns) + ")", re.MULTILINE)


_C_LINES = _rule(
    r"#[ \t]*(?:include[ \t]*[<\"]|ifn?def[ \t]+\w|define[ \t]+\w|pragma[ \t]+\w|undef[ \t]+\w)",
    r"typedef[ \t]+(?:struct|enum|union|unsigned|int|void)\b",
    r"extern[ \t]+\"C\"",
)
_CPP = _rule(
    r"#[ \t]*include[ \t]*<(?:algorithm|array|atomic|chrono|functional|iostream|map|memory|mutex|optional|set|span|"
    r"sstream|string|string_view|type_traits|unordered_map|utility|vector)>",
    r"namespace[ \t]+\w[\w:]*[ \t]*(?:\{|$)",
    r"template[ \t]*<",
    r"using[ \t]+(?:namespace[ \t]+\w|\w+[ \t]*=)",
    r"(?:public|private|protected)[ \t]*:",
    r"class[ \t]+\w[\w \t]*(?:final[ \t]*)?(?::[ \t]*(?:public|private|protected)\b|\{|$)",
    r"(?:virtual|constexpr|explicit|inline constexpr)[ \t]+\w",
    r"[^\n\"]{0,200}\bstd::\w",
)
_OBJECTIVE_C = _rule(
    r"@(?:interface|implementation|protocol|property|class|import|end|synthesize)\b", r"#[ \t]*import[ \t]*[<\"]"
)
_PERL = _rule(
    r"use[ \t]+(?:strict|warnings|utf8|v?5[.\d]*|lib|parent|base|constant|[A-Z]\w*(?:::\w+)*)\b[^\n]*;",
    r"package[ \t]+\w+(?:::\w+)*[ \t]*;",
    r"(?:my|our|local)[ \t]*[($@%]",
    r"sub[ \t]+\w+[ \t]*(?:\([^)\n]*\))?[ \t]*\{",
    r"=(?:head[1-4]|pod|cut|over|item)\b",
)
_PROLOG = _rule(
    r":-[ \t]*(?:module|use_module|dynamic|discontiguous|initialization|ensure_loaded|set_prolog_flag)\b",
    r"[a-z]\w*\([^)\n]{0,200}\)[ \t]*:-",
    r"[a-z]\w*\([^)\n]{0,200}\)\.[ \t]*$",
    r"[a-z]\w*[ \t]*-->",
)
_FORTRAN = _rule(
    r"(?:program|subroutine|module|use|block data|end[ \t]*(?:program|subroutine|module|do|if))\b(?![ \t]*[=:.;{])",
    r"(?:integer|real|character|logical|double precision|complex)\b[^\n;{]{0,60}(?:::|\bfunction\b)",
    r"implicit[ \t]+none",
    r"(?:INTEGER|REAL|CHARACTER|LOGICAL|DOUBLE PRECISION|COMPLEX|PROGRAM|SUBROUTINE|COMMON|DIMENSION|IMPLICIT)\b",
)
_LISP = _rule(r"\((?:defun|defmacro|defpackage|in-package|defvar|defparameter|defclass|defgeneric|defmethod|setq)\b")

# In this order; the first that matches names the language. None stands for a suffix that may also be plain text.
_RULES: dict[str, tuple[tuple[str, re.Pattern[str]], ...]] = {
    ".as": (
        ("ActionScript", _rule(r"package\b[^;\n]*$", r"package[ \t\w.]*\{", r"import[ \t]+flash\.")),
        ("AngelScript", _rule(r"[^\n]{0,80}\w@[ \t]+\w")),
    ),
    ".b": (("Limbo", _rule(r"implement[ \t]+\w+;")), ("Brainfuck", re.compile(r"\A[\s><+\-.,\[\]]{30,}\Z"))),
    ".cl": (
        ("OpenCL", _rule(r"(?:__)?kernel[ \t]+(?:__attribute__|void)\b", r"#pragma[ \t]+OPENCL")),
        ("Common Lisp", _LISP),
    ),
    ".cls": (
        ("Visual Basic", _rule(r"VERSION[ \t]+1\.0[ \t]+CLASS", r"Attribute[ \t]+VB_Name\b", r"Option[ \t]+Explicit")),
        (
            "Apex",
            _rule(r"(?:@isTest|@AuraEnabled)", r"(?:public|private|global)[^\n{;]{0,60}\b(?:class|interface|enum)\b"),
        ),
    ),
    ".d": (
        ("DTrace", _rule(r"#pragma[ \t]+D[ \t]+option", r"\w*:\w*:\w*:\w*[ \t]*$", r"(?:BEGIN|END)[ \t]*$")),
        (
            "D",
            _rule(r"module[ \t]+\w+(?:\.\w+)*[ \t]*;", r"import[ \t]+(?:std|core)\b[^\n]*;", r"(?:@safe|unittest)\b"),
        ),
        ("Makefile", _rule(r"[^\s:]+\.[od][ \t]*:[ \t]")),
    ),
    ".do": (
        ("Stata", _rule(r"(?:use|gen|generate|replace|regress|tabulate|foreach|forvalues|capture|clear all)[ \t]+\w")),
    ),
    ".es": (
        ("Erlang", _rule(r"%%!", r"-(?:module|export|include)\(")),
        ("JavaScript", _rule(r"(?:const|let|var|function|import|export)[ \t]+[\w{*$]")),
    ),
    ".ex": (
        ("Elixir", _rule(r"defmodule[ \t]+[A-Z]", r"(?:def|defp|defmacro)[ \t]+\w", r"@moduledoc\b")),
        (
            "Euphoria",
            _rule(r"(?:include[ \t]+\w+\.e|global[ \t]+(?:procedure|function|constant)|end[ \t]+procedure)\b"),
        ),
    ),
    ".f": (
        ("Forth", _rule(r":[ \t]+\S+[ \t]+\([^)\n]*--[^)\n]*\)")),
        ("Fortran", _FORTRAN),
    ),
    ".for": (
        ("Forth", _rule(r":[ \t]+\S+[ \t]+\([^)\n]*--[^)\n]*\)")),
        ("Fortran", _FORTRAN),
    ),
    ".fs": (
        ("Forth", _rule(r":[ \t]+\S+[ \t]+\([^)\n]*--[^)\n]*\)")),
        (
            "GLSL",
            _rule(r"#version[ \t]+\d", r"(?:uniform|varying|precision)[ \t]+\w+[ \t]+\w", r"void[ \t]+main[ \t]*\("),
        ),
        (
            "F#",
            _rule(
                r"(?:module|namespace|open)[ \t]+[A-Za-z]\w*",
                r"let[ \t]+(?:rec[ \t]+|inline[ \t]+)?\w",
                r"type[ \t]+\w",
            ),
        ),
    ),
    ".g4": (("ANTLR", _rule(r"(?:lexer[ \t]+|parser[ \t]+)?grammar[ \t]+\w+;")),),
    ".h": (("Objective-C", _OBJECTIVE_C), ("C++", _CPP), ("C", _C_LINES)),
    ".inc": (
        ("PHP", re.compile(r"<\?(?:php|=)")),
        ("BitBake", _rule(r"(?:SRC_URI|LICENSE|DEPENDS|DESCRIPTION|RDEPENDS\S*)[ \t]*[?:+]?=", r"inherit[ \t]+\w")),
        ("Pascal", _rule(r"\{\$\w", r"procedure[ \t]+\w[^\n]*;", r"unit[ \t]+\w+;")),
        ("Assembly", _rule(r"\.?(?:globl|macro|endm|equ)\b", r"%(?:define|macro|include)[ \t]")),
        ("C++", _CPP),
        ("C", _C_LINES),
    ),
    ".l": (
        ("Lex", _rule(r"%%[ \t]*$", r"%option\b")),
        ("Common Lisp", _LISP),
        ("Roff", _rule(r"\.(?:TH|SH|Dd)[ \t]")),
    ),
    ".m": (
        ("Objective-C", _OBJECTIVE_C),
        ("Mercury", _rule(r":-[ \t]*(?:module|pred|func|import_module)\b")),
        ("Wolfram Language", _rule(r"BeginPackage\[", r"\(\*[ \t]", r"[A-Z]\w*\[[^\n]*\][ \t]*:=")),
        (
            "MATLAB",
            _rule(
                r"function\b[^\n;{]*(?:=[^\n;{]*)?$", r"classdef\b", r"%", r"(?:clear|clc|close)(?:[ \t]+all)?;?[ \t]*$"
            ),
        ),
    ),
    ".ml": (
        (
            "Standard ML",
            _rule(r"(?:structure|signature|functor)[ \t]+\w+[^\n]*=", r"fun[ \t]+\w+[^\n]*=", r"val[ \t]+\w+[ \t]*="),
        ),
        (
            "OCaml",
            _rule(r"let[ \t]+(?:rec[ \t]+)?[\w(]", r"open[ \t]+[A-Z]", r"module[ \t]+\w", r"type[ \t]+[\w'(]", r"\(\*"),
        ),
    ),
    ".mod": (
        ("Modula-2", _rule(r"(?:IMPLEMENTATION[ \t]+|DEFINITION[ \t]+)?MODULE[ \t]+\w+")),
        ("Go module", _rule(r"module[ \t]+[\w.]+/\S")),
        ("AMPL", _rule(r"(?:param|var|set|minimize|maximize|subject to)[ \t]+\w[^\n]*[;:]")),
    ),
    ".p": (
        ("Gnuplot", _rule(r"(?:s?plot|set[ \t]+(?:term|terminal|output|xlabel|ylabel|style|key))\b")),
        ("Pascal", _rule(r"(?:program|unit)[ \t]+\w+[^\n]*;")),
        ("OpenEdge ABL", _rule(r"(?i:define[ \t]+(?:variable|temp-table|input|output))\b")),
    ),
    ".pl": (("Raku", _rule(r"use[ \t]+v6\b")), ("Perl", _PERL), ("Prolog", _PROLOG)),
    ".pm": (("Raku", _rule(r"use[ \t]+v6\b", r"unit[ \t]+(?:class|module)\b")), ("Perl", _PERL)),
    ".pp": (
        ("Pascal", _rule(r"(?:program|unit|uses|interface|implementation)\b[^\n{]*;?[ \t]*$", r"\{\$\w")),
        (
            "Puppet",
            _rule(r"(?:class|define|node)[ \t]+['\w:]+[^\n;]*[\{\(]", r"(?:include|require)[ \t]+[\w:]+[ \t]*$"),
        ),
    ),
    ".pro": (
        ("Prolog", _PROLOG),
        ("QMake", _rule(r"(?:QT|TEMPLATE|TARGET|SOURCES|HEADERS|CONFIG)[ \t]*[+-]?=")),
        ("IDL", _rule(r"(?i:pro|function)[ \t]+\w+[ \t]*,", r"(?i:compile_opt)\b")),
    ),
    ".r": (
        ("Rebol", _rule(r"REBOL[ \t]*\[")),
        (
            "R",
            _rule(
                r"(?:library|require|source|suppressPackageStartupMessages)\(",
                r"[\w.$\[\]\"']+[ \t]*<-",
                r"#'",
                r"[\w.]+[ \t]*=[ \t]*(?:function|c)[ \t]*\(",
            ),
        ),
    ),
    ".re": (("Reason", _rule(r"(?:let|type|module|open)[ \t]+\w[^\n]*")), ("C++", _CPP), ("C", _C_LINES)),
    ".s": (
        (
            "Assembly",
            _rule(
                r"\.(?:globl|global|text|data|section|align|ascii|file|type|word|byte)\b",
                r"(?:mov[a-z]?|ldr|push|jmp|call|ret|addi|lda)[ \t]+[%$\w\[#(]",
            ),
        ),
    ),
    ".sc": (
        (
            "SuperCollider",
            _rule(r"SynthDef\b", r"\+?[ \t]*[A-Z]\w*[ \t]*:[ \t]*[A-Z]\w*[ \t]*\{", r"[^\n]{0,100}\.(?:ar|kr)\("),
        ),
        ("Scala", _rule(r"(?:object|class|trait|case class|import|package|def|val)[ \t]+\w")),
    ),
    ".sql": (
        (
            "SQL",
            _rule(
                r"(?i:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|WITH|BEGIN|SET|USE|GRANT|DECLARE|EXEC|TRUNCATE|COMMENT|"
                r"MERGE|COPY|EXPLAIN|PRAGMA|CALL|START|LOCK|REPLACE)\b[^\n]"
            ),
        ),
    ),
    ".st": (
        ("Smalltalk", _rule(r"!?\w+(?: class)?[ \t]+methodsFor:", r"[^\n]{0,100}\bsubclass:[ \t]*#")),
        ("Structured Text", _rule(r"(?:PROGRAM|FUNCTION_BLOCK|FUNCTION|VAR|END_VAR)\b")),
    ),
    ".t": (
        ("Perl", _PERL),
        ("Raku", _rule(r"use[ \t]+v6\b")),
        ("Turing", _rule(r"(?:var|const)[ \t]+\w+[ \t]*(?::=|:[ \t]*\w)", r"end[ \t]+(?:if|for|loop)\b")),
    ),
    ".ts": (
        (
            "TypeScript",
            _rule(
                r"(?:import|export|const|let|var|function|interface|type|enum|declare|namespace|abstract|class|async|module)"
                r"[ \t]+[\w{*$'\"\[]",
                r"@\w+\(",
                r"///[ \t]*<reference",
                r"(?:describe|it|test)\(",
            ),
        ),
    ),
    ".tsx": (
        ("TypeScript", _rule(r"(?:import|export|const|let|function|interface|type|class|declare)[ \t]+[\w{*$'\"]")),
    ),
    ".v": (
        ("Coq", _rule(r"(?:Require|From|Theorem|Lemma|Definition|Fixpoint|Inductive|Proof|Section|Module|Qed)\b")),
        (
            "Verilog",
            _rule(
                r"module[ \t]+\w+[ \t]*[(#;]",
                r"(?:endmodule|always|assign|initial|wire|reg|input|output)\b",
                r"`(?:timescale|define|include|ifdef)\b",
            ),
        ),
        ("V", _rule(r"(?:pub[ \t]+)?fn[ \t]+\(?\w", r"(?:module|import)[ \t]+\w+[ \t]*$")),
    ),
    ".x": (("RPC", _rule(r"program[ \t]+\w+[ \t]*\{")), ("Logos", _rule(r"%(?:hook|ctor|orig|end)\b"))),
    ".y": (("Yacc", _rule(r"%%[ \t]*$", r"%token\b")),),
}

# For files without a suffix that says anything. Each needs all of its patterns.
_ANYWHERE: tuple[tuple[str, tuple[re.Pattern[str], ...]], ...] = (
    ("PHP", (re.compile(r"\A\s{0,99}<\?php\b"),)),
    ("Dockerfile", (_rule(r"FROM[ \t]+\S+"), _rule(r"(?:RUN|CMD|ENTRYPOINT|COPY|WORKDIR|ENV)[ \t]+\S"))),
    ("CMake", (_rule(r"(?i:cmake_minimum_required)[ \t]*\("),)),
    (
        "Makefile",
        (re.compile(r"^[\w.%/$()-]{1,80}(?:[ \t]+[\w.%/$()-]{1,80}){0,20}[ \t]{0,20}:[^\n=]{0,500}\n\t\S", re.M),),
    ),
    ("C++", (_rule(r"#[ \t]*include[ \t]*[<\"]"), _CPP)),
    (
        "C",
        (
            _rule(r"#[ \t]*include[ \t]*<\w+(?:/\w+)*\.h>"),
            _rule(r"(?:static[ \t]+)?(?:int|void|char|struct[ \t]+\w+)[ \t*]+\w+[ \t]*\("),
        ),
    ),
    (
        "Java",
        (
            _rule(r"package[ \t]+[a-z]\w*(?:\.\w+)*;"),
            _rule(r"import[ \t]+(?:static[ \t]+)?\w+(?:\.\w+)+(?:\.\*)?;"),
            _rule(r"public[ \t]"),
        ),
    ),
    ("Go", (_rule(r"package[ \t]+\w+[ \t]*$"), _rule(r"func[ \t]+\(?\w"))),
    ("Rust", (_rule(r"(?:pub[ \t]+)?fn[ \t]+\w+[^\n]*\{"), _rule(r"(?:use|mod)[ \t]+\w+(?:::|;)"))),
    (
        "Python",
        (
            _rule(r"(?:import[ \t]+\w+(?:\.\w+)*|from[ \t]+\.?\w+(?:\.\w+)*[ \t]+import\b)"),
            _rule(r"(?:def|class)[ \t]+\w+[^\n]{0,200}:[ \t]*(?:#[^\n]*)?$"),
        ),
    ),
)

AMBIGUOUS = frozenset(_RULES)


def language_by_content(head: str, suffix: str) -> str | None:
    """Tell the programming language of a text by what stands in it.

    Args:
        head: The beginning of the text.
        suffix: The suffix with the dot in lower case, or "".

    Returns:
        The language, or None where nothing proves one.
    """
    stated = by_shebang(head) or _by_mode_line(head)
    if stated:
        return stated
    if suffix in _RULES:
        return next((language for language, rule in _RULES[suffix] if rule.search(head)), None)
    return next((language for language, rules in _ANYWHERE if all(rule.search(head) for rule in rules)), None)


def by_shebang(head: str) -> str | None:
    """Return the language of the interpreter that the first line names, or None."""
    match = _SHEBANG.match(head[:300].split("\n", 1)[0])
    if match is None:
        return None
    name = match[1].lower()
    return SHEBANGS.get(name) or SHEBANGS.get(name.rstrip("0123456789"))


def _by_mode_line(head: str) -> str | None:
    first = "\n".join(line[:500] for line in head.split("\n", _MODE_LINES)[:_MODE_LINES])
    match = _EMACS_MODE.search(first) or _VIM_MODE.search(first)
    return KERNELS.get(match[1].lower()) if match else None
