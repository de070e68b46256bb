"""Detect the licence of a text, from an SPDX tag or from the wording of the licence.

A licence is recognised by short phrases that all versions of its text (or its usual notice) contain and others do not,
so a text that only mentions a licence has none.
"""

from __future__ import annotations

import re
from pathlib import PurePath

HEAD_CHARS = 20_000

_SPDX_TAG = re.compile(r"SPDX-License-Identifier:[ \t]{0,8}([A-Za-z0-9(][^\n\r*<>\"'#;,]{0,200})")
_EXPRESSION = re.compile(r"\(?[A-Za-z0-9][A-Za-z0-9.+\-:]*(?: (?:AND|OR|WITH) \(?[A-Za-z0-9][A-Za-z0-9.+\-:]*\)*)*\)?")
_SIGNS = (
    "licen",
    "permission to use",
    "hereby granted",
    "redistribution and use",
    "unencumbered",
    "cc0 1.0",
    "misrepresented",
)
# comment markers of source headers and typography, which differ between copies of the same text
_FOLDED = re.compile(r"[\s*#/;%\"'“”‘’`<>!_=|\-]+")
_DROPPED = str.maketrans("", "", ",():")

_GRANT = "permission is hereby granted free of charge"
_BSD = "redistribution and use in source and binary forms with or without modification"
_GNU_NOTICE = "redistribute it and or modify it under the terms of the gnu"

# identifier, phrases that must occur, phrases that must not; the first matching rule is used
_RULES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("Unlicense", ("free and unencumbered software released into the public domain",), ()),
    ("CC0-1.0", ("cc0 1.0 universal",), ()),
    ("CC-BY-NC-SA-4.0", ("attribution noncommercial sharealike 4.0 international",), ()),
    ("CC-BY-NC-ND-4.0", ("attribution noncommercial noderivatives 4.0 international",), ()),
    ("CC-BY-NC-4.0", ("attribution noncommercial 4.0 international",), ()),
    ("CC-BY-ND-4.0", ("attribution noderivatives 4.0 international",), ()),
    ("CC-BY-SA-4.0", ("attribution sharealike 4.0 international",), ()),
    ("CC-BY-4.0", ("attribution 4.0 international",), ()),
    ("Apache-2.0", ("apache license version 2.0", "limitations under the license"), ()),
    ("Apache-2.0", ("apache license version 2.0 january 2004",), ()),
    ("Apache-2.0", ("licensed under the apache license version 2.0",), ()),
    ("MPL-2.0", ("mozilla public license version 2.0", "covered software"), ()),
    ("MPL-2.0", ("subject to the terms of the mozilla public license v. 2.0",), ()),
    ("MPL-1.1", ("mozilla public license version 1.1",), ()),
    ("EPL-2.0", ("eclipse public license v 2.0",), ()),
    ("EPL-1.0", ("eclipse public license v 1.0",), ()),
    ("BSL-1.0", ("boost software license version 1.0",), ()),
    ("Zlib", ("altered source versions must be plainly marked as such",), ()),
    ("PSF-2.0", ("python software foundation license version 2",), ()),
    ("0BSD", ("permission to use copy modify and or distribute this software for any purpose",),
     ("copyright notice and this permission notice appear",)),
    ("ISC", ("permission to use copy modify and or distribute this software for any purpose",), ()),
    ("ISC", ("permission to use copy modify and distribute this software for any purpose with or without fee",
             "appear in all copies"), ()),
    ("MIT-0", (_GRANT, "to deal in the software without restriction"), ("shall be included", "boost")),
    ("MIT", (_GRANT, "to deal in the software without restriction"),
     ("x consortium", "the name of the copyright holder")),
    ("X11", (_GRANT, "to deal in the software without restriction"), ()),
    ("BSD-4-Clause", (_BSD, "all advertising materials mentioning features"), ()),
    ("BSD-3-Clause", (_BSD, "endorse or promote products derived from"), ()),
    ("BSD-2-Clause", (_BSD, "redistributions in binary form must reproduce"), ()),
    ("Artistic-2.0", ("the artistic license 2.0",), ()),
)  # fmt: skip

_GNU_FAMILIES = (
    ("AGPL", "affero general public license"),
    ("LGPL", "lesser general public license"),
    ("LGPL", "library general public license"),
    ("GPL", "general public license"),
)
_GNU_VERSION = re.compile(r"version ([23](?:\.[01])?)\b")
_GNU_TITLE = re.compile(r"^.{0,120}?gnu (?:affero |lesser |library )?general public license version ([23](?:\.[01])?)")

_WORD = r"(?:licen[cs]es?|copying|unlicen[cs]e)"
_NAME = re.compile(rf"(?:[a-z0-9]+[-_.])?{_WORD}(?:[-_.][a-z0-9.+\-]{{1,30}})?|copyright(?:\.(?:txt|md|rst))?")
_OTHER_SUFFIX = re.compile(r"\.(?:c|cc|cpp|cs|css|go|h|html|java|js|json|php|py|rb|rs|ts)")


def detect_licence(text: str) -> str | None:
    """Return the SPDX expression of a text's licence, such as `GPL-2.0-or-later OR MIT`, or None.

    Reads the first 20,000 characters; a tag `SPDX-License-Identifier:` takes precedence over the wording.
    """
    head = text[:HEAD_CHARS]
    lowered = head.lower()
    if not any(sign in lowered for sign in _SIGNS):
        return None
    return _tagged(head) or _worded(_FOLDED.sub(" ", lowered.translate(_DROPPED)))


def is_licence_file(name: str) -> bool:
    """Return True for the usual names of licence files: LICENSE, LICENCE.md, COPYING, LICENSE-MIT, ..."""
    lowered = name.lower()
    return bool(_NAME.fullmatch(lowered)) and not _OTHER_SUFFIX.fullmatch(PurePath(lowered).suffix)


def _tagged(head: str) -> str | None:
    found = _SPDX_TAG.search(head)
    if found is None:
        return None
    # a comment may end after the expression
    expression = _EXPRESSION.match(" ".join(found[1].split()))
    return expression[0].strip() if expression else None


def _worded(folded: str) -> str | None:
    # GNU licences mention one another, and other licences mention them: a title at the beginning decides
    titled = _GNU_TITLE.match(folded)
    if titled:
        return _gnu(titled[0], titled[1], "-only")
    for identifier, needed, excluded in _RULES:
        if all(phrase in folded for phrase in needed) and not any(phrase in folded for phrase in excluded):
            return identifier
    return _gnu_notice(folded)


def _gnu(wording: str, version: str, suffix: str) -> str | None:
    family = next((name for name, phrase in _GNU_FAMILIES if phrase in wording), None)
    known = {"2": "2.0", "3": "3.0", "2.0": "2.0", "3.0": "3.0", "2.1": "2.1"}
    return f"{family}-{known[version]}{suffix}" if family and version in known else None


def _gnu_notice(folded: str) -> str | None:
    at = folded.find(_GNU_NOTICE)
    if at < 0:
        return None
    notice = folded[at : at + 400]
    version = _GNU_VERSION.search(notice)
    if version is None:
        return None
    later = "any later version" in notice
    return _gnu(notice[: version.end()], version[1], "-or-later" if later else "-only")
