"""Personal data: what is found, and what only looks like it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tasks.text.private_data import find_pii

# put together here, so that no scanner of repositories takes them for real ones
AWS = "AKIA" + "Q3EGRXWJ5ZP7KTNB"
GITHUB = "ghp_" + "a8Kd03LmNq9Zx7Wv5Uy1Ts2Rp4Qo6In8Hb0G"
SLACK = "xoxb-" + "2048172391-7719283746-aZ8kLm3QpR"
GOOGLE = "AIza" + "SyB8k2Qw9Zx4Lm7Np1Rt5Vu3Yc6Hd0Jf-_a"
OPENAI = "sk-" + "proj-4f8Kd03LmNq9Zx7Wv5Uy1Ts2"
JWT = "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIn0" + ".dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"
KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA7bq0\nx9Q1\n-----END RSA PRIVATE KEY-----"

FOUND = [
    ("email", "write to jane.doe+list@mail.sheep.co.uk today", "jane.doe+list@mail.sheep.co.uk"),
    ("email", "<o'neil@farm.ie>", "o'neil@farm.ie"),
    ("email", "mail:a@b.de.", "a@b.de"),
    ("email", "_x@sheep.farm", "_x@sheep.farm"),
    ("ip", "the host 93.184.216.34 answers", "93.184.216.34"),
    ("ip", "http://93.184.216.34:8080/x", "93.184.216.34"),
    ("ip", "ping 8.8.8.8", "8.8.8.8"),
    ("ip", "from 203.1.114.7.", "203.1.114.7"),
    ("ip", "at 2a00:1450:4001:81b::200e now", "2a00:1450:4001:81b::200e"),
    ("ip", "[2606:4700:4700:0:0:0:0:1111]:443", "2606:4700:4700:0:0:0:0:1111"),
    ("phone", "call +49 711 123456-7", "+49 711 123456-7"),
    ("phone", "+4917612345678 is hers", None),
    ("phone", "her number +4917612345678 is new", "+4917612345678"),
    ("phone", "(415) 867-5309", "(415) 867-5309"),
    ("phone", "or 415-867-5309 after six", "415-867-5309"),
    ("phone", "Tel.: 0711 / 123456", "0711 / 123456"),
    ("phone", "+1 (415) 867-5309", "+1 (415) 867-5309"),
    ("phone", "Fax 030-1234567", "030-1234567"),
    ("iban", "to DE89 3704 0044 0532 0130 00 by Friday", "DE89 3704 0044 0532 0130 00"),
    ("iban", "GB82WEST12345698765432", "GB82WEST12345698765432"),
    ("iban", "IBAN: FR14 2004 1010 0505 0001 3M02 606 BIC", "FR14 2004 1010 0505 0001 3M02 606"),
    ("iban", "NL91ABNA0417164300.", "NL91ABNA0417164300"),
    ("card", "card 4111 1111 1111 1111 exp", "4111 1111 1111 1111"),
    ("card", "5500-0055-5555-5559", "5500-0055-5555-5559"),
    ("card", "pan=378282246310005;", "378282246310005"),
    ("card", "the card 378282246310005", "378282246310005"),
    ("card", "3782 822463 10005", "3782 822463 10005"),
    ("secret", f"aws_key = {AWS}", AWS),
    ("secret", f"'{GITHUB}'", GITHUB),
    ("secret", f"{SLACK}\n", SLACK),
    ("secret", f"?key={GOOGLE}", GOOGLE),
    ("secret", f"use {OPENAI} here", OPENAI),
    ("secret", f"Authorization: Bearer {JWT}", JWT),
    ("secret", f"keep\n{KEY}\nsafe", KEY),
    ("secret", 'password = "hG7$kQ2!mZ9"', "hG7$kQ2!mZ9"),
    ("secret", "DB_PASSWD: 'tr0ub4dor&3x'", "tr0ub4dor&3x"),
    ("secret", '{"client_secret": "9f8Gd7Sa6Kj5Hh4"}', "9f8Gd7Sa6Kj5Hh4"),
    ("secret", "API_KEY=9f8Gd7Sa6Kj5Hh4Lq3", "9f8Gd7Sa6Kj5Hh4Lq3"),
    ("secret", "config['token'] = 'x8Kd03LmNq9Z'", "x8Kd03LmNq9Z"),
]

NOT_FOUND = [
    # e-mail
    "@property", "a @ b.de", "user@localhost", "me@example.com", "you@docs.example.org", "icon@2x.png",
    "lodash@4.17.21",
    "git@github.com:sheep/fold.git", "@media (min-width: 3em)", "a.@b", "x@y", "foo@bar.invalid",
    "\\@namedef{bbl@info@name.locale}", "\\HyC@package.style", "aes256-gcm@openssh.com",
    # addresses of the network
    'ObjectIdentifier("2.5.29.32")', "1.3.101.112", "OID: 2.16.8.113",
    "version 93.184.216.34", "v1.2.3.4", "Chrome/91.0.44.124", "section 3.2.1.40", "3.2.1.4 Title", "1.3.6.1.4.1.311",
    "127.0.0.1", "192.168.1.1", "10.0.0.255", "host 256.1.1.1", "at 192.0.2.1", "package-93.184.216.34.tar.gz",
    "Firmware: 93.184.16.3", "01.02.03.04", "libfoo==93.184.216.34", "std::vector<a::b>", "2001:db8::1", "fe80::1",
    "12:34:56", "2026:11:20 10:20:30", "face::1", "::1", "Foo::Bar::2000::x", "aa:bb:cc:dd:ee:ff:00:11",
    # phones
    "+1980-02-29T01:02:03", "'+2026-11-20 10'",
    "2026-11-20 10:20:30", "2026-11-20T10:20:30+01:00", "+1.234567890", "a = b +12345678", "1700000000",
    "978-3-16-148410-0", "ISBN 0-306-40615-2", "pages 100-200", "(202) 555-0143", "+1 202-555-0143", "123-45-6789",
    "3.14159265358979", "x = 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8", "+1 2 3 4 5 6 7 8 9", "\n+1234567890123",
    "20/11/2026 1234",
    "0711 123456", "100.200.3000",
    # account numbers
    "DE89 3704 0044 0532 0130 01", "XX89 3704 0044 0532 0130 00", "AB12CD34EF56AB78CD90",
    "ISO 9001 2015 1234 5678 9012",
    # cards
    "4111 1111 1111 1112", "0.4111111111111111", "1700000000000", "9780306406157", "4111-1111-11-11-1111-11",
    "4111111111111111abc", "0000 0000 0000 0000", "5.500005555555559", "6 0 1 1 1 1 1 1 1 1 1 1 1 1 1 7",
    # digests and the like
    "d41d8cd98f00b204e9800998ecf8427e", "da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "commit 3f2504e04f8941d39a0c0305e82c3301a1b2c3d4", "3f2504e0-4f89-41d3-9a0c-0305e82c3301",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    # secrets
    'password = "aaaaaaaaaaaa1"', "api_key = aaaaaaaaaaaaaaaa1111",
    'publicKeyToken="1fc8b3b9a1e18e3b"', 'A = "-----BEGIN RSA PRIVATE KEY-----"\nB = "-----END RSA PRIVATE KEY-----"',
    'password = "changeme123"', 'password = "your-password-1"', "password = os.environ['DB_PASSWORD1']",
    'token = "tokenizer"', "token: str = 'a'", "api_key = ${API_KEY_123456789}", "secret = 'correcthorsebattery'",
    "the secret: a shepherd never sleeps", "token = next_token(stream, 1234567)", "password: <password1234>",
    "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----", "-----BEGIN RSA PRIVATE KEY----- never ends",
    "sk-learn",
    "task-management-of-the-many-sheep-2", "eyJ is how it begins", "AKIA", "passwords = read_file('/etc/x1234567')",
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "expected"), FOUND)
def test_personal_data_is_found_to_the_character(kind: str, text: str, expected: str | None) -> None:
    spans = find_pii(text)
    found = [(span.kind, text[span.start : span.end]) for span in spans]
    assert found == ([(kind, expected)] if expected else [])


@pytest.mark.parametrize("text", NOT_FOUND)
def test_what_only_looks_like_it_is_left_alone(text: str) -> None:
    assert [(span.kind, text[span.start : span.end]) for span in find_pii(text)] == []


def test_places_are_in_characters_of_the_text() -> None:
    text = "🐑é羊 jane@sheep.farm 🐑"
    (span,) = find_pii(text)
    assert text[span.start : span.start + span.length] == "jane@sheep.farm"


def test_a_letter_that_grows_in_lower_case_moves_no_span() -> None:
    text = "İİİ password = 'hG7$kQ2!mZ9'"
    (span,) = find_pii(text)
    assert text[span.start : span.end] == "hG7$kQ2!mZ9"


def test_spans_are_in_order_and_do_not_overlap() -> None:
    text = f"token = '{GITHUB}' jane@sheep.farm {KEY} password: 'a9@farm.deX7' call +49 711 1234567"
    spans = find_pii(text)
    assert all(one.end <= other.start for one, other in pairwise(spans))
    assert [span.kind for span in spans] == ["secret", "email", "secret", "secret", "phone"]


def test_of_overlapping_spans_the_first_and_then_the_longest_counts() -> None:
    """The token of the assignment holds a whole key of GitHub's."""
    text = f'token = "{GITHUB}"'
    assert [(span.start, span.length) for span in find_pii(text)] == [(text.index("ghp_"), len(GITHUB))]


def test_every_one_of_many_is_found() -> None:
    text = "jane@sheep.farm, DE89 3704 0044 0532 0130 00, 93.184.216.34\n" * 500
    assert len(find_pii(text)) == 1_500


@pytest.mark.parametrize("between", [" ", ", ", "\n", " to MT84 MALT 0110 0001 2345 MTLC AST0 01S and "])
def test_account_numbers_in_a_row_are_found_once_each(between: str) -> None:
    written = ["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432", "FR14 2004 1010 0505 0001 3M02 606"] * 20
    found = [span for span in find_pii(between.join(written)) if span.kind == "iban"]
    n_between = (len(written) - 1) * (" MT84" in between)
    assert len(found) == len(written) + n_between
    assert {span.length for span in found} == {len(number) for number in written} | ({38} if n_between else set())


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "filling",
    ["1-", "1 2 ", "+1 ", "(0", "0.", "1.1.1.1 ", "a@a.", "2000:", "DE89 ", "4111 ", "AKIA", "eyJ.", "-----BEGIN ",
     "token ", "token='", "password:", "a.a@", "xoxb-1", "key=\"a1"],
)  # fmt: skip
def test_hostile_texts_take_no_longer_than_others(filling: str) -> None:
    """A quadratic pattern would take hours for these."""
    text = filling * (100_000 // len(filling))
    assert len(find_pii(text)) <= len(text)
