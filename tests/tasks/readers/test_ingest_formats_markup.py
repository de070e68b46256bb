"""HTML and XML: the text that a reader sees, in the right encoding; bombs and broken markup end in a row."""

from __future__ import annotations

import pytest
from extraction import extract_document

from tasks.readers.records import Extraction, ExtractOptions

OPTIONS = ExtractOptions()


def read(data: bytes | str, suffix: str) -> Extraction:
    return extract_document(data.encode() if isinstance(data, str) else data, suffix, OPTIONS)


def html(body: str) -> str:
    found = read(f"<!DOCTYPE html><html><body>{body}</body></html>", ".html")
    assert found.status == "ok", found
    return found.pages[0].text


def xml(body: str) -> str:
    found = read(f'<?xml version="1.0"?>{body}', ".xml")
    assert found.status == "ok", found
    return found.pages[0].text


# HTML


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<h1>Title</h1><p>One <b>bo</b>ld\n  word.</p><p>Two", "# Title\n\nOne bold word.\n\nTwo"),
        ("<h2>One<a href=x></a></h2><p>a</p><h3> </h3><h3><b>Two</b></h3>b", "## One\n\na\n\n### Two\n\nb"),
        ("a<br>b<br/>c", "a\nb\nc"),
        ("<ul><li>one<li>two</ul>after", "  • one\n  • two\nafter"),
        ("<p>x</p><ol><li>one<li>two</ol>", "x\n\n  1. one\n  2. two"),
        ("<table><tr><th>a</th><td>b</td></tr><tr><td>c<td>d</table>", "a\t\tb\nc\t\td"),
        ("<pre>def f():\n    return 1\n</pre>", "def f():\n    return 1"),
        ("one<script>var a = '</p>';</script><style>p {}</style> two", "one two"),
        ("<p>a<noscript>no</noscript><template>t</template></p><!-- comment -->b", "a\n\nb"),
        ("<p hidden>a</p><p style='display: none'>b<br>c</p><div STYLE='DISPLAY:NONE'>d</div>e", "e"),
        ("<p>5 &lt; 6 &amp; &uuml; &#8364; &nbsp;x", "5 < 6 & ü € \u00a0x"),
        ("<div><div><div>a</div></div></div><div>b</div>", "a\nb"),
        ("<p>unclosed <b>bold <i>both</p><p>next</b>", "unclosed bold both\n\nnext"),
        ("a<select><option>1<option>2</select>b<svg><title>no</title><text>t</text></svg>", "ab"),
    ],
)
def test_html_becomes_what_a_reader_sees(body, text):
    assert html(body) == text


PAGE = """<html><head><title>How to sort</title></head><body><header><nav><a href=/>Home</a></nav></header>
<div class="cookie-banner">We use cookies. <button>Accept</button></div><ul><li><a href=/>Products</a></ul>
<main><h1>How to sort</h1><p>Sorting puts the items of a list in order.</p>
<ul><li>stable<li>in place</ul><pre>def sort(xs):
    return sorted(xs)</pre><figure><pre>sort([2, 1])</pre><figcaption>A call</figcaption></figure>
<table><tr><th>n<th>time<tr><td>10<td>1 s</table></main>
<aside class="sidebar">Related</aside><footer>Imprint</footer></body></html>"""


def test_menus_footers_and_cookie_notices_are_left_out_and_code_lists_and_tables_are_not():
    text = read(PAGE, ".html").pages[0].text
    assert not [word for word in ("Home", "cookies", "Accept", "Products", "Related", "Imprint") if word in text], text
    kept = "stable", "in place", "def sort(xs):\n    return sorted(xs)", "sort([2, 1])", "A call", "10\t\t1 s"
    assert [part for part in kept if part in text] == list(kept)


def test_a_page_without_main_content_keeps_its_whole_text_and_says_so():
    found = read("<html><body><nav>Home</nav><footer>Imprint</footer><p hidden>x</p></body></html>", ".html")
    assert (found.status, found.pages[0].text) == ("ok", "Home\nImprint")
    assert "no main content" in found.reason


def test_the_title_is_a_field_and_not_text():
    found = read("<html><head><title> A &amp;\n B </title></head><body>x<svg><title>y</title></svg></body></html>", "")
    assert (found.title, found.pages[0].text, found.media_type) == ("A & B", "x", "text/html")


@pytest.mark.parametrize(
    ("encoding", "declared", "recorded"),
    [
        ("utf-8", "utf-8", "utf-8"),
        ("utf-8-sig", "iso-8859-1", "utf-8"),
        ("utf-8", "iso-8859-1", "utf-8"),
        ("cp1252", "iso-8859-1", "cp1252"),
        ("koi8-r", "koi8-r", "koi8-r"),
        ("shift_jis", "Shift_JIS", "cp932"),
        ("gb18030", "gb2312", "gb18030"),
        ("utf-16", "utf-16", "utf-16-le"),
        ("utf-16-le", "utf-8", "utf-16-le"),
        ("utf-16-be", "no-such-encoding", "utf-16-be"),
    ],
)
def test_the_encoding_is_proven_or_as_declared(encoding, declared, recorded):
    words = {"koi8-r": "Все счастливые", "shift_jis": "吾輩は猫である", "gb18030": "天地玄黄"}.get(
        encoding, "Größe – Maß"
    )
    meta = f'<meta http-equiv="Content-Type" content="text/html; charset={declared}">'
    page = f"<html><head>{meta}</head><body><p>{words}</p></body></html>"
    found = read(page.encode(encoding), ".html")
    assert (found.pages[0].text, found.encoding) == (words, recorded)


def test_a_false_declaration_does_no_harm():
    page = '<html><head><meta charset="ascii"></head><body><p>' + "Все счастливые семьи похожи. " * 20
    found = read(page.replace("ascii", "euc-jp").encode("cp1251"), ".html")
    assert "счастливые" in found.pages[0].text


def test_a_page_without_text_says_so():
    found = read("<html><body><script>all()</script></body></html>", ".html")
    assert (found.status, found.reason_code) == ("rejected", "no_text")


@pytest.mark.parametrize(
    "data",
    [
        b"<html>" + b"<div>" * 100_000 + b"deep" + b"</div>" * 100_000,
        pytest.param(b"<html><p>deep" + b"<b>" * 200_000, marks=pytest.mark.full),
        b"<html>deep" + b"<!--" * 300_000,
        b"<html>deep<a " + b"a=1 " * 300_000 + b">",
        b"<html>deep" + b"</x>" * 200_000,
        pytest.param(b"<html>deep<table>" + b"<tr><td>" * 100_000, marks=pytest.mark.full),
        b"<html>deep<title>" + b"<title>" * 100_000,
        pytest.param(b"<html>deep" + b"<pre>" * 100_000, marks=pytest.mark.full),
        pytest.param(b"<html>deep" + b"<svg>" * 100_000, marks=pytest.mark.full),
        b"<html>deep<p class='" + b"menu " * 1_000_000 + b"'>",
        b"<html>deep" + b"<p class=\0>word " * 5_000 + b"<\0p>" * 3,
        b"<html>deep" + b"<figure>" * 900 + b"<ul>" * 30_000,
        pytest.param(b"<html>deep" + b"<ul>x</ul><div><ul>y</ul></div>" * 20_000, marks=pytest.mark.full),
    ],
    ids=[
        "nested",
        "unclosed",
        "comments",
        "attributes",
        "ends",
        "table",
        "titles",
        "pre",
        "svg",
        "attribute",
        "nulls",
        "figures",
        "lists",
    ],
)
def test_hostile_html_is_read_all_the_same(data):
    assert "deep" in read(data, ".html").pages[0].text


def test_one_line_of_fifty_megabytes_is_read():
    found = read(b"<html><p>" + b"word " * 10_000_000, ".html")
    assert (found.status, len(found.pages[0].text)) == ("ok", 50_000_000 - 1)


# XML


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<a><b>one</b><b>two</b></a>", "one\ntwo"),
        ("<a>\n  <b>one</b>\n  <b>two <i>in</i>line</b>\n</a>", "one\ntwo inline"),
        ("<p><b>Bold</b>ly go</p>", "Boldly go"),
        ("<a><![CDATA[x < y]]> &amp; &#x20ac;</a>", "x < y & €"),
        ("<a><!-- no --><?pi no?>yes</a>", "yes"),
        ('<!DOCTYPE a [<!ENTITY me "Me">]><a>It is &me;.</a>', "It is &me;."),
        ('<n:a xmlns:n="u"><n:b>one</n:b></n:a>', "one"),
    ],
)
def test_xml_becomes_its_character_data(body, text):
    assert xml(body) == text


def test_the_first_title_of_xml_is_its_title():
    found = read("<?xml version='1.0'?><feed><title>The <b>feed</b></title><e><title>No</title></e></feed>", ".xml")
    assert (found.title, found.media_type) == ("The feed", "application/xml")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-15", "windows-1251", "gb18030", "euc-jp"])
def test_xml_in_every_encoding_is_read(encoding):
    words = {"windows-1251": "Все счастливые", "gb18030": "天地", "euc-jp": "吾輩は猫"}.get(encoding, "Größe")
    data = f'<?xml version="1.0" encoding="{encoding}"?><a>{words}</a>'.encode(encoding)
    assert read(data, ".xml").pages[0].text == words


def billion_laughs() -> str:
    levels = "".join(f'<!ENTITY l{number} "{f"&l{number - 1};" * 10}">' for number in range(1, 10))
    return f'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY l0 "ha">{levels}]><a>&l9;</a>'


@pytest.mark.parametrize("suffix", [".xml", ".svg", "", ".txt"])
def test_an_entity_bomb_is_rejected(suffix):
    found = read(billion_laughs(), suffix)
    assert (found.status, found.reason_code, found.media_type) == ("rejected", "corrupt", "application/xml")
    assert "billion laughs" in found.reason


def test_a_large_entity_is_not_multiplied():
    found = read(f'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY x "{"x" * 100_000}">]><a>{"&x;" * 1000}</a>', ".xml")
    assert found.pages[0].text == "&x;" * 1000


def test_an_external_entity_is_not_opened(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    body = f'<!DOCTYPE a [<!ENTITY x SYSTEM "{secret.as_uri()}">]><a>before &x; after</a>'
    assert xml(body) == "before &x; after"


def test_a_document_of_external_entities_says_so():
    body = '<!DOCTYPE a [<!ENTITY % x SYSTEM "http://localhost/x.dtd"> %x;]><a></a>'
    found = read(f'<?xml version="1.0"?>{body}', ".xml")
    assert (found.status, found.reason_code) == ("rejected", "no_text")
    assert "not opened" in found.reason


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("<a><b></a>", "mismatched tag: line 1"),
        ("<a>", "no element found"),
        ("<a/><b/>", "junk after"),
        ("", "no element"),
    ],
)
def test_xml_that_is_not_well_formed_says_where(body, complaint):
    found = read(f'<?xml version="1.0"?>{body}', ".xml")
    assert (found.status, found.reason_code) == ("failed", "corrupt")
    assert complaint in found.reason


@pytest.mark.full
def test_deep_and_wide_xml_is_read():
    assert xml("<a>" * 200_000 + "deep" + "</a>" * 200_000) == "deep"
    assert xml("<a>" + "<b>x</b> y" * 100_000 + "</a>").startswith("x yx y")


def test_one_attribute_of_megabytes_is_passed_over():
    assert xml(f'<a b="{"x" * 5_000_000}">text</a>') == "text"
