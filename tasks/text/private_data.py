"""Find personal data and secrets: e-mail and IP addresses, phone, account and card numbers, keys and passwords.

Each kind is searched for only near a cheap indicator, and validated by checksums, ranges, prefixes or the words before
it, so that versions, dates, ISBNs and digests are not found. Time is linear in the text: every repetition in a pattern
is bounded or of one class of characters.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple


class Span(NamedTuple):
    """A span of a text, in characters; its kind is `email`, `ip`, `phone`, `iban`, `card` or `secret`."""

    start: int
    length: int
    kind: str

    @property
    def end(self) -> int:
        """Return the end, exclusive."""
        return self.start + self.length


def find_pii(text: str) -> list[Span]:
    """Return the spans of personal data in order, without overlaps: the first is kept, of equal starts the longest."""
    spans = [*_emails(text), *_numbers(text), *_ipv6(text), *_keys(text), *_private_keys(text), *_assignments(text)]
    spans.sort(key=lambda span: (span.start, -span.length, span.kind))
    kept: list[Span] = []
    for span in spans:
        if not kept or span.start >= kept[-1].end:
            kept.append(span)
    return kept


# secrets

_TAIL = r"(?![A-Za-z0-9_\-])"
# prefixes of keys, and the patterns of whole keys, which are tried only at the prefix
_KEYS = {
    "AKIA": re.compile(r"AKIA[0-9A-Z]{16}(?![0-9A-Za-z])"),
    "ASIA": re.compile(r"ASIA[0-9A-Z]{16}(?![0-9A-Za-z])"),
    **{f"gh{kind}_": re.compile(rf"gh{kind}_[A-Za-z0-9]{{36,255}}(?![A-Za-z0-9])") for kind in "pousr"},
    "github_pat_": re.compile(r"github_pat_[A-Za-z0-9_]{22,255}(?![A-Za-z0-9_])"),
    "glpat-": re.compile(rf"glpat-[A-Za-z0-9_\-]{{20,64}}{_TAIL}"),
    "xox": re.compile(rf"xox[abeoprs]-(?=[A-Za-z\-]{{0,16}}[0-9])[A-Za-z0-9\-]{{15,250}}{_TAIL}"),
    "AIza": re.compile(rf"AIza[0-9A-Za-z_\-]{{35}}{_TAIL}"),
    "sk-": re.compile(rf"sk-(?=[A-Za-z_\-]{{0,60}}[0-9])[A-Za-z0-9_\-]{{20,250}}{_TAIL}"),
    "sk_live_": re.compile(r"sk_live_[A-Za-z0-9]{20,250}(?![A-Za-z0-9])"),
    "rk_live_": re.compile(r"rk_live_[A-Za-z0-9]{20,250}(?![A-Za-z0-9])"),
    "hf_": re.compile(r"hf_[A-Za-z0-9]{34}(?![A-Za-z0-9])"),
    "eyJ": re.compile(r"eyJ[A-Za-z0-9_\-]{8,2000}+\.eyJ[A-Za-z0-9_\-]{8,8000}+\.[A-Za-z0-9_\-]{8,2000}+"),
}
_PRIVATE_KEY = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_KEY_BODY = re.compile(r"[A-Za-z0-9+/=]{16}")
_PRIVATE_KEY_CHARS = 16_384

# beginnings of the names of secrets, and their continuations
_NAMES = {
    "pass": re.compile(r"w(?:or)?d|phrase"),
    "api": re.compile(r"[_\-]?key"),
    **dict.fromkeys(("pwd", "secret", "token", "access_key"), re.compile("")),
}
_ASSIGNED = re.compile(
    r"""
    [A-Za-z0-9_\-]{0,24} ["'\]]{0,2} [ \t]{0,8} (?: := | => | [:=] ) [ \t]{0,8}
    (?: "([^"\n]{8,200})" | '([^'\n]{8,200})' | ([A-Za-z0-9+/_\-.~!@$%^&*]{16,200}=?=?) (?=[\s,;]|$) )
    """,
    re.VERBOSE,
)
_PLACEHOLDER = re.compile(
    r"example|sample|dummy|change.?me|placeholder|your|xxx|\*\*\*|\.\.\.|1234567|abcdef|<|>|\$\{|\{\{|%\(|\(|\)|://|^\$|\s",
    re.IGNORECASE,
)
_MIN_ENTROPY = 3.0  # bits per character, of a quoted value
_MIN_BARE_ENTROPY = 3.5


def _keys(text: str) -> Iterator[Span]:
    for opening, pattern in _KEYS.items():
        for start in _places(text, opening):
            # a key starts a token; this also keeps the search linear
            if start and (text[start - 1].isalnum() or text[start - 1] in "_-"):
                continue
            found = pattern.match(text, start)
            if found and len(set(found[0])) > 7:
                yield Span(start, len(found[0]), "secret")


def _places(text: str, needle: str) -> Iterator[int]:
    at = text.find(needle)
    while at >= 0:
        yield at
        at = text.find(needle, at + len(needle))


def _private_keys(text: str) -> Iterator[Span]:
    done = 0
    for start in _places(text, "-----BEGIN "):
        opening = _PRIVATE_KEY.match(text, start)
        if opening is None or start < done:
            continue
        closing = opening[0].replace("BEGIN", "END", 1)
        end = text.find(closing, opening.end(), opening.end() + _PRIVATE_KEY_CHARS)
        # code that reads and writes such files has both lines, without a key between them
        if end >= 0 and _KEY_BODY.search(text, opening.end(), end):
            done = end + len(closing)
            yield Span(start, done - start, "secret")


def _assignments(text: str) -> Iterator[Span]:
    """Yield values assigned to names like `password` and `api_key`, if they look random."""
    lowered = text.replace("\u0130", "I").lower()  # its lower case has two characters, which would shift positions
    for name, rest in _NAMES.items():
        for start in _places(lowered, name):
            if lowered.endswith("publickey", 0, start):  # PublicKeyToken in names of .NET assemblies
                continue
            named = rest.match(lowered, start + len(name))
            found = _ASSIGNED.match(text, named.end()) if named else None
            group = found.lastindex if found else None
            if found and group and _looks_random(found[group], bare=group == 3):
                yield Span(found.start(group), len(found[group]), "secret")


def _looks_random(value: str, bare: bool) -> bool:
    letters = any(char.isalpha() for char in value)
    digits = sum(char.isdigit() for char in value)
    if not (letters and digits) or _PLACEHOLDER.search(value):
        return False
    if bare and (digits < 3 or "." in value):  # probably an expression in code
        return False
    entropy = -sum(n / len(value) * math.log2(n / len(value)) for n in Counter(value).values())
    return entropy >= (_MIN_BARE_ENTROPY if bare else _MIN_ENTROPY)


# e-mail

_LOCAL_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._%+-'")
_DOMAIN = re.compile(r"(?:[A-Za-z0-9-]{1,63}\.){1,8}([A-Za-z]{2,24})(?![A-Za-z0-9-])(?=([@:/]?))")
# such as `icon@2x.png`; `_RESERVED` also has names of ciphers such as `aes256-gcm@openssh.com`
_FILE_SUFFIXES = frozenset(
    ("css", "dll", "gif", "htm", "html", "ico", "jpeg", "jpg", "js", "json", "md", "pdf", "png", "py", "so", "svg")
)
_RESERVED = re.compile(
    r"(?:.*\.)?(?:example\.(?:com|org|net)|openssh\.com|example|test|invalid|localhost|local)", re.IGNORECASE
)


def _emails(text: str) -> Iterator[Span]:
    for at in _places(text, "@"):
        start = at
        while start > 0 and at - start < 64 and text[start - 1] in _LOCAL_CHARS:
            start -= 1
        while start < at and text[start] in ".%+-'":
            start += 1
        # in TeX, `\\name@part` and `a@b@c.d` are names of macros
        is_name = text[start - 1 : start] in ("\\", "@") or text[at - 1] == "."
        domain = _DOMAIN.match(text, at + 1) if start < at and not is_name else None
        if domain and _is_mail(text[start:at], domain):
            yield Span(start, domain.end(1) - start, "email")


def _is_mail(local: str, domain: re.Match[str]) -> bool:
    if domain[2] == "@" or (local == "git" and domain[2]):  # `git@host:path` is the address of a repository
        return False
    return domain[1].lower() not in _FILE_SUFFIXES and not _RESERVED.fullmatch(domain[0])


# numbers: one scan finds runs of digits and separators; each kind is searched for only in those

_RUN = re.compile(r"[0-9][0-9 \u00a0.()/+\-]{5,}")
_IPV4 = re.compile(r"(?<![0-9A-Za-z_.\-])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9A-Za-z_]|[.\-][0-9A-Za-z])")
_IP_CONTEXT = re.compile(r"(?:\bip|address|host|server|client|ping|dns|peer|from|://|@)\W{0,4}$", re.IGNORECASE)
_VERSION_CONTEXT = re.compile(
    r"(?:\bv|versions?|release|\bver\.?|\brev\.?|revision|build|firmware|driver|section|chapter|clause|§|[A-Za-z0-9]/|"
    r"\boid|identifier|==|>=|<=|~=)[\s:=('\"]{0,3}$",
    re.IGNORECASE,
)
_CARD = re.compile(r"(?<![0-9A-Za-z.,\-+/])[0-9](?:[ \-]?[0-9]){12,18}(?![0-9A-Za-z]|[.,\-/][0-9])")
_CARD_GROUPS = ((4, 4, 4, 4), (4, 6, 5), (4, 6, 4), (4, 4, 4, 4, 3))
_IBAN = re.compile(r"(?<![0-9A-Za-z])[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?![0-9A-Za-z])")
_INTERNATIONAL = re.compile(
    r"(?<![0-9A-Za-z+=*/.])\+[1-9][0-9]{0,2}(?:[ \u00a0.\-/()]{0,3}[0-9]){6,13}(?![0-9]|\.[0-9])"
)
_NORTH_AMERICAN = re.compile(
    r"(?<![0-9A-Za-z.\-/+])(?:1[ .\-])?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}([.\-]))[2-9][0-9]{2}[.\-][0-9]{4}"
    r"(?![0-9A-Za-z]|[.\-][0-9])"
)
_NATIONAL = re.compile(
    r"(?<![0-9A-Za-z.+])\(?0[0-9]{1,5}\)?(?:[ \u00a0/\-]{0,3}[0-9]){5,10}(?![0-9A-Za-z]|[.\-/][0-9])"
)
_DATE = re.compile(r"\+[12][0-9]{3}-[0-9]{2}-[0-9]{2}")
_PHONE_CONTEXT = re.compile(
    r"(?:\btel|phone|telefon|téléphone|mobile?|\bcell|\bfax|\bcall|☎)[^\n0-9]{0,12}$", re.IGNORECASE
)
_CONTEXT = 24
_MARGIN = 40  # an IBAN may begin this many characters before a run of digits, or end as many after it


def _numbers(text: str) -> Iterator[Span]:
    for run in _RUN.finditer(text):
        start, end = max(0, run.start() - 2), run.end() + 2
        n_digits = sum(map(str.isdigit, run[0]))
        if run[0].count(".") >= 3:
            yield from _ipv4(text, start, end)
        if n_digits >= 7:
            yield from _phones(text, start, end)
            # account numbers may have letters between their digits, so they may extend beyond the run
            yield from _ibans(text, max(0, start - _MARGIN), run.end() + _MARGIN)
        if n_digits >= 13:
            yield from _cards(text, start, end)


def _before(text: str, start: int) -> str:
    return text[max(0, start - _CONTEXT) : start]


def _ipv4(text: str, start: int, end: int) -> Iterator[Span]:
    for found in _IPV4.finditer(text, start, end):
        octets = found[0].split(".")
        if any(int(octet) > 255 or (octet[0] == "0" and len(octet) > 1) for octet in octets):
            continue
        before = _before(text, found.start())
        # sections, versions and object identifiers look the same: small numbers need a context of IP addresses
        small = max(map(int, octets)) < 32 or octets[:2] in (["1", "3"], ["2", "5"])
        if _VERSION_CONTEXT.search(before) and not before.endswith("//"):
            continue
        if small and not _IP_CONTEXT.search(before):
            continue
        if ipaddress.IPv4Address(found[0]).is_global:
            yield Span(found.start(), len(found[0]), "ip")


def _cards(text: str, start: int, end: int) -> Iterator[Span]:
    for found in _CARD.finditer(text, start, end):
        groups = found[0].replace("-", " ").split(" ")
        written_as_one = len(groups) == 1 or tuple(map(len, groups)) in _CARD_GROUPS
        if written_as_one and _is_card("".join(groups)):
            yield Span(found.start(), len(found[0]), "card")


def _is_card(digits: str) -> bool:
    n, two, three, four = len(digits), int(digits[:2]), int(digits[:3]), int(digits[:4])
    known = (
        (digits[0] == "4" and n in (13, 16, 19))  # Visa
        or (n == 16 and (51 <= two <= 55 or 2221 <= four <= 2720))  # Mastercard
        or (n == 15 and two in (34, 37))  # American Express
        or (16 <= n <= 19 and (four == 6011 or two == 65 or 644 <= three <= 649))  # Discover
        or (16 <= n <= 19 and 3528 <= four <= 3589)  # JCB
        or (14 <= n <= 19 and (two in (36, 38) or 300 <= three <= 305))  # Diners
        or (16 <= n <= 19 and two == 62)  # UnionPay
    )
    return known and len(set(digits)) > 1 and _luhn(digits)


def _luhn(digits: str) -> bool:
    """Return True if the check digit of ISO/IEC 7812-1 is correct."""
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0


# length of an account number by country (the SWIFT registry of ISO 13616)
_IBAN_LENGTHS = {
    code: length
    for length, codes in {
        15: "NO", 16: "BE", 18: "DK FI FO GL NL SD", 19: "MK SI", 20: "AT BA EE KZ LT LU XK MN",
        21: "CH HR LI LV", 22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ OM TL SO",
        24: "AD CZ ES MD PK RO SA SE SK TN VG", 25: "LY PT ST", 26: "IS TR", 27: "BI DJ FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HU LB NI PL SV", 29: "BR EG PS QA UA", 30: "JO KW MU YE", 31: "MT SC", 32: "LC",
        33: "RU",
    }.items()
    for code in codes.split()
}  # fmt: skip


def _ibans(text: str, start: int, end: int) -> Iterator[Span]:
    for found in _IBAN.finditer(text, start, end):
        length = _IBAN_LENGTHS.get(found[0][:2])
        # a word after an account number may look like part of it
        written = re.match(rf"\S(?: ?\S){{{length - 1}}}(?= |$)", found[0]) if length else None
        if written and _mod_97(written[0].replace(" ", "")):
            yield Span(found.start(), len(written[0]), "iban")


def _mod_97(iban: str) -> bool:
    return int("".join(str(int(char, 36)) for char in iban[4:] + iban[:4])) % 97 == 1


def _phones(text: str, start: int, end: int) -> Iterator[Span]:
    for found in _INTERNATIONAL.finditer(text, start, end) if text.find("+", start, end) >= 0 else ():
        if _is_international(found[0], text, found.start()):
            yield Span(found.start(), len(found[0]), "phone")
    for found in _NORTH_AMERICAN.finditer(text, start, end):
        digits = re.sub(r"[^0-9]", "", found[0])[-10:]
        if not (digits[3:6] == "555" and digits[6:8] == "01"):  # reserved for fiction
            yield Span(found.start(), len(found[0]), "phone")
    for found in _NATIONAL.finditer(text, start, end):
        if _PHONE_CONTEXT.search(_before(text, found.start())):
            yield Span(found.start(), len(found[0]), "phone")


def _is_international(number: str, text: str, start: int) -> bool:
    digits = re.sub(r"[^0-9]", "", number)
    if _DATE.match(number):
        return False
    if not 8 <= len(digits) <= 15 or digits[3:9].startswith("55501") or digits[-7:-2] == "55501":
        return False
    separators = re.sub(r"[0-9+]", "", number)
    if not separators:  # a lone signed number, or a line that a patch adds
        opens_line = start == 0 or text[start - 1] == "\n"
        return len(digits) >= 10 and not opens_line and not digits.endswith("0000")
    # a single digit may be an extension; several are a list of numbers
    single = re.findall(r"[^0-9+][0-9](?![0-9])", number[2:])
    return separators != "." and len(single) < 2


# IPv6: public addresses begin with 2 or 3; C++ and Perl have many double colons. The lookbehind comes after the first
# digit, because a search for a literal class is the fastest.

_IPV6 = re.compile(r"[23](?<![0-9A-Za-z:.][23])[0-9A-Fa-f]{3}(?::[0-9A-Fa-f]{0,4}){2,7}(?![0-9A-Za-z:])")


def _ipv6(text: str) -> Iterator[Span]:
    if "::" not in text and text.count(":") < 7:
        return
    for found in _IPV6.finditer(text):
        try:
            address = ipaddress.IPv6Address(found[0])
        except ValueError:
            continue
        if address.is_global:
            yield Span(found.start(), len(found[0]), "ip")
