"""Archives: members become documents, and no archive, however hostile, costs more than its limits allow."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import random
import stat
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Mapping

import pytest
from extraction import extract_document
from ingest_samples import encrypted_pdf, text_pdf

from tasks.readers import document as document_module
from tasks.readers.document import yield_document
from tasks.readers.records import Extraction, ExtractOptions

OPTIONS = ExtractOptions()
SMALL = ExtractOptions(max_file_bytes=200_000, archive_max_bytes=1_000_000, archive_max_members=10)


def zip_of(entries: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(zipfile.ZipInfo(name), data, compress_type=method)
    return file.getvalue()


def tar_of(entries: Mapping[str, bytes], tar_format: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tar_format) as archive:
        for name, data in entries.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def tar_with(*infos: tarfile.TarInfo) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for info in infos:
            archive.addfile(info)
    return file.getvalue()


def members_of(data: bytes, options: ExtractOptions = OPTIONS, **arguments: object) -> dict[str, Extraction]:
    outcome = extract_document(data, "", options, **arguments)
    assert (outcome.kind, outcome.status, outcome.pages) == ("archive", "ok", []), outcome
    found = {member.locator: member for member in outcome.members}
    assert len(found) == len(outcome.members)
    return found


def text_of(member: Extraction) -> str:
    return "".join(page.text for page in member.pages)


CONTENTS = {"a.py": b"x = 1\n", "docs/b.txt": b"Hello from b.\n", "docs/c.md": b"# C\n"}


@pytest.mark.parametrize(
    "data",
    [
        zip_of(CONTENTS),
        zip_of(CONTENTS, zipfile.ZIP_STORED),
        zip_of(CONTENTS, zipfile.ZIP_BZIP2),
        zip_of(CONTENTS, zipfile.ZIP_LZMA),
        tar_of(CONTENTS),
        tar_of(CONTENTS, tarfile.USTAR_FORMAT),
        gzip.compress(tar_of(CONTENTS), mtime=0),
        bz2.compress(tar_of(CONTENTS)),
        lzma.compress(tar_of(CONTENTS)),
    ],
    ids=["deflated", "stored", "zip-bzip2", "zip-lzma", "tar", "ustar", "tar.gz", "tar.bz2", "tar.xz"],
)
def test_every_member_becomes_a_document(data):
    found = members_of(data)
    assert list(found) == list(CONTENTS)
    assert [member.status for member in found.values()] == ["ok"] * 3
    assert found["a.py"].programming_language == "Python"
    assert text_of(found["docs/b.txt"]) == "Hello from b.\n"
    assert found["docs/b.txt"].size == 14
    assert found["docs/b.txt"].sha256 == hashlib.sha256(b"Hello from b.\n").hexdigest()


def test_a_single_compressed_file_is_known_by_the_name_in_its_header():
    file = io.BytesIO()
    with gzip.GzipFile("notes.py", "wb", fileobj=file, mtime=0) as stream:
        stream.write(b"x = 1\n")
    assert members_of(file.getvalue())["notes.py"].programming_language == "Python"


@pytest.mark.parametrize("compress", [lambda data: gzip.compress(data, mtime=0), bz2.compress, lzma.compress])
def test_a_single_compressed_file_without_a_name_is_called_content(compress):
    assert text_of(members_of(compress(b"some words"))["content"]) == "some words"


def test_archives_inside_archives_join_their_locators():
    inner = zip_of({"a.txt": b"deep"})
    found = members_of(
        zip_of({"x.txt": b"flat", "in/inner.zip": inner, "in/b.tar.gz": gzip.compress(tar_of(CONTENTS))})
    )
    assert list(found) == ["x.txt", "in/inner.zip/a.txt", *(f"in/b.tar.gz/{name}" for name in CONTENTS)]
    assert text_of(found["in/inner.zip/a.txt"]) == "deep"


def test_a_table_inside_an_archive_gives_its_rows():
    found = members_of(zip_of({"rows.jsonl": b'{"text": "one"}\n{"text": "two"}\n'}))
    assert {locator: text_of(member) for locator, member in found.items()} == {
        "rows.jsonl/1": "one",
        "rows.jsonl/2": "two",
    }


def test_the_file_itself_says_what_it_is():
    outcome = extract_document(gzip.compress(tar_of(CONTENTS)), ".gz", OPTIONS)
    assert (outcome.status, outcome.kind, outcome.media_type, outcome.reason) == (
        "ok",
        "archive",
        "application/gzip",
        "",
    )


def test_entries_of_one_name_have_locators_of_their_own():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        for text in ("one", "two", "three"):
            archive.writestr("a.txt", text)
        archive.writestr("a.txt%232", "four")
    found = members_of(file.getvalue())
    assert list(found) == ["a.txt", "a.txt%232", "a.txt%233", "a.txt%25232"]
    assert text_of(found["a.txt%232"]) == "two"


def test_names_that_are_not_utf8_are_encoded():
    info = tarfile.TarInfo("a\udcff%.txt")
    info.size = 1
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(b"x"))
    assert list(members_of(file.getvalue())) == ["a%FF%25.txt"]


def test_a_name_without_end_is_cut_and_stays_unique():
    found = members_of(tar_of({"x" * 9000 + "1": b"one", "x" * 9000 + "2": b"two"}))
    assert sorted(text_of(member) for member in found.values()) == ["one", "two"]
    assert all(len(locator) < 2100 for locator in found)


def test_folders_have_no_row():
    folder = tarfile.TarInfo("folder")
    folder.type = tarfile.DIRTYPE
    file = tarfile.TarInfo("folder/a.txt")
    assert list(members_of(tar_with(folder, file))) == ["folder/a.txt"]
    assert list(members_of(zip_of({"folder/": b"", "folder/a.txt": b"x"}))) == ["folder/a.txt"]


def test_an_empty_member_is_skipped():
    assert members_of(zip_of({"a.txt": b""}))["a.txt"].reason_code == "empty"


@pytest.mark.parametrize("data", [zip_of({}), zip_of({"folder/": b""})])
def test_an_archive_without_members_says_so(data):
    outcome = extract_document(data, ".zip", OPTIONS)
    assert (outcome.status, outcome.reason_code, outcome.kind) == ("skipped", "empty", "archive")
    inner = members_of(zip_of({"inner.zip": data}))["inner.zip"]
    assert (inner.status, inner.reason_code) == ("skipped", "empty")


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "a/../../b.txt",
        "..\\b.txt",
        "C:\\b.txt",
        "c:b.txt",
        "\\\\server\\b.txt",
        "..",
    ],
)
@pytest.mark.parametrize("build", [zip_of, tar_of], ids=["zip", "tar"])
def test_names_that_climb_out_are_refused_and_the_rest_is_read(build, name):
    found = list(members_of(build({"before.txt": b"x", name: b"evil", "after.txt": b"y"})).values())
    assert [(member.status, member.reason_code) for member in found] == [
        ("ok", ""),
        ("rejected", "unsafe_path"),
        ("ok", ""),
    ]
    locator = found[1].locator
    assert ".." not in locator and not locator.startswith(("/", "\\"))
    assert ":" not in locator


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (tarfile.SYMTYPE, "symbolic link"),
        (tarfile.LNKTYPE, "hard link"),
        (tarfile.CHRTYPE, "character device"),
        (tarfile.BLKTYPE, "block device"),
        (tarfile.FIFOTYPE, "named pipe"),
    ],
)
def test_links_and_devices_are_refused(kind, what):
    info = tarfile.TarInfo("odd")
    info.type, info.linkname = kind, "/etc/passwd"
    member = members_of(tar_with(info, tarfile.TarInfo("b.txt")))["odd"]
    assert (member.status, member.reason_code) == ("rejected", "unsafe_path")
    assert what in member.reason


def test_a_symbolic_link_in_a_zip_is_refused():
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(info, "/etc/passwd")
    assert members_of(file.getvalue())["link"].reason_code == "unsafe_path"


# Limits


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_member_that_unpacks_to_too_much_is_refused_and_the_rest_is_read(method):
    found = members_of(zip_of({"a.txt": b"x", "bomb": bytes(300_000), "b.txt": b"y"}, method), SMALL)
    assert [member.reason_code for member in found.values()] == ["", "too_large", ""]
    assert "max_file_bytes" in found["bomb"].reason


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_bomb_is_refused(compress):
    member = members_of(compress(bytes(10_000_000)), SMALL)["content"]
    assert (member.status, member.reason_code) == ("rejected", "too_large")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, pytest.param(zipfile.ZIP_BZIP2, marks=pytest.mark.full)])
def test_a_bomb_in_a_zip_is_not_unpacked_into_memory(method):
    data = zip_of({"bomb": bytes(250_000_000)}, method)
    tracemalloc.start()
    try:
        member = members_of(data, ExtractOptions(max_file_bytes=1_000_000))["bomb"]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert member.reason_code == "too_large"
    assert peak < 150_000_000


def test_a_bomb_of_many_members_ends_at_the_total():
    data = zip_of({f"{number}.txt": b"x" * 190_000 for number in range(9)})
    outcome = extract_document(data, "", SMALL)
    assert [member.reason_code for member in outcome.members] == ["", "", "", "", "", "too_large"]
    assert "archive_max_bytes" in outcome.members[-1].reason
    assert "5.txt" in outcome.reason


def test_a_nested_bomb_ends_at_the_total():
    level = bytes(190_000)
    for _ in range(2):
        level = zip_of({f"{number}": level for number in range(8)})
    outcome = extract_document(level, "", SMALL)
    assert outcome.members[-1].reason_code == "too_large"
    assert "archive_max_bytes" in outcome.reason


def test_overlapping_entries_count_each_time_they_are_unpacked():
    data = overlapping_zip(9, b"x" * 190_000)
    outcome = extract_document(data, "", SMALL)
    assert len(data) < 2000
    assert outcome.members[-1].reason_code == "too_large"
    assert len(outcome.members) == 6


def overlapping_zip(n_entries: int, content: bytes) -> bytes:
    """A ZIP whose directory names the same compressed data many times."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = compressor.compress(content) + compressor.flush()
    sizes = struct.pack("<LLL", zlib.crc32(content), len(packed), len(content))
    local = b"PK\x03\x04" + struct.pack("<HHHHH", 20, 0, 8, 0, 33) + sizes + struct.pack("<HH", 1, 0) + b"a" + packed
    central = b"PK\x01\x02" + struct.pack("<HHHHHH", 20, 20, 0, 8, 0, 33) + sizes
    central += struct.pack("<HHHHHLL", 1, 0, 0, 0, 0, 0, 0) + b"a"
    end = b"PK\x05\x06" + struct.pack("<HHHHLLH", 0, 0, n_entries, n_entries, n_entries * len(central), len(local), 0)
    return local + central * n_entries + end


def test_declared_sizes_are_not_trusted():
    data = bytearray(zip_of({"a.txt": b"x" * 100_000, "b.txt": b"fine"}))
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        place = data.index(signature) + offset
        data[place : place + 4] = struct.pack("<L", 10)
    found = members_of(bytes(data))
    assert (found["a.txt"].status, found["a.txt"].reason_code) == ("failed", "corrupt")
    assert text_of(found["b.txt"]) == "fine"


def test_a_sparse_member_counts_by_what_it_expands_to():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("sparse")
        info.pax_headers = {
            "GNU.sparse.major": "0",
            "GNU.sparse.minor": "1",
            "GNU.sparse.size": str(10**12),
            "GNU.sparse.map": "0,1",
        }
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))
    assert members_of(file.getvalue(), SMALL)["sparse"].reason_code == "too_large"


def test_archives_deeper_than_allowed_are_refused():
    level = zip_of({"a.txt": b"deep"})
    for number in range(3):
        level = zip_of({f"{number}.zip": level, "b.txt": b"beside"})
    found = members_of(level)
    assert {locator: member.reason_code for locator, member in found.items()} == {
        "2.zip/1.zip/0.zip": "too_deep",
        "2.zip/1.zip/b.txt": "",
        "2.zip/b.txt": "",
        "b.txt": "",
    }
    assert "archive_depth" in found["2.zip/1.zip/0.zip"].reason


def test_members_after_the_limit_are_left_out_and_the_first_says_so():
    outcome = extract_document(zip_of({f"{number:02d}.txt": b"x" for number in range(15)}), "", SMALL)
    assert len(outcome.members) == 11
    last = outcome.members[-1]
    assert (last.locator, last.status, last.reason_code) == ("10.txt", "rejected", "too_many")
    assert outcome.status == "ok"
    assert "archive_max_members" in outcome.reason


def test_folders_without_end_are_given_up():
    infos = []
    for number in range(200):
        info = tarfile.TarInfo(f"{number}")
        info.type = tarfile.DIRTYPE
        infos.append(info)
    assert extract_document(tar_with(*infos), "", SMALL).reason_code == "too_many"
    many = zip_of({f"{number}/": b"" for number in range(200)})
    assert extract_document(many, "", SMALL).reason_code == "too_many"


# Damage


def test_a_damaged_member_does_not_harm_the_others():
    data = bytearray(zip_of({"a.txt": b"one", "b.txt": b"two two", "c.txt": b"three"}, zipfile.ZIP_STORED))
    place = data.index(b"two two")
    data[place] ^= 0xFF
    found = members_of(bytes(data))
    assert [member.reason_code for member in found.values()] == ["", "corrupt", ""]
    assert found["b.txt"].status == "failed"


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: data[:30]])
def test_a_truncated_zip_is_corrupt(damage):
    outcome = extract_document(damage(zip_of(CONTENTS)), ".zip", OPTIONS)
    assert (outcome.status, outcome.reason_code, outcome.kind) == ("failed", "corrupt", "archive")
    assert "ZIP" in outcome.reason


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_truncated_compressed_data_is_corrupt(compress):
    data = compress(random.Random(0).randbytes(10_000).hex().encode())
    outcome = extract_document(data[: len(data) // 2], "", OPTIONS)
    assert (outcome.status, outcome.reason_code) == ("failed", "corrupt")
    assert "compressed data" in outcome.reason


def test_a_truncated_tar_keeps_what_came_before():
    data = tar_of({"a.txt": b"a" * 600, "b.txt": b"b" * 600})
    found = members_of(data[: data.index(b"b" * 600) + 100])
    assert [(member.status, member.reason_code) for member in found.values()] == [("ok", ""), ("failed", "corrupt")]


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_damaged_header_is_not_taken_for_the_end(compress):
    data = bytearray(tar_of({"a.txt": b"one", "b.txt": b"two", "c.txt": b"three"}, tarfile.USTAR_FORMAT))
    data[data.index(b"b.txt")] ^= 0x01
    found = members_of(compress(bytes(data)))
    assert [member.reason_code for member in found.values()] == ["", "corrupt"]
    assert "damaged" in list(found.values())[1].reason


def test_headers_that_follow_each_other_without_end_are_damage():
    link = tarfile.TarInfo("././@LongLink")
    link.type, link.size = tarfile.GNUTYPE_LONGNAME, 2
    chain = (link.tobuf(tarfile.GNU_FORMAT) + b"a\0" + bytes(510)) * 3000
    outcome = extract_document(chain, "", OPTIONS)
    assert (outcome.status, outcome.reason_code) == ("failed", "corrupt")


def test_a_header_of_megabytes_is_damage():
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 4_000_000
    outcome = extract_document(header.tobuf(tarfile.USTAR_FORMAT) + b"1" * 4_000_256, "", OPTIONS)
    assert (outcome.status, outcome.reason_code) == ("failed", "corrupt")


def test_a_negative_size_cannot_lead_backwards():
    header = tarfile.TarInfo("a.txt")
    block = bytearray(header.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = b"\xff" * 11 + b"\x00"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    outcome = extract_document(bytes(block) + bytes(2048), "", OPTIONS)
    assert (outcome.status, outcome.reason_code) == ("failed", "corrupt")


@pytest.mark.parametrize("build", [zip_of, tar_of], ids=["zip", "tar"])
@pytest.mark.parametrize("length", [3, 9])
def test_a_gzip_member_that_ends_in_its_header_does_not_harm_the_others(build, length):
    stub = gzip.compress(b"text", mtime=0)[:length]
    members = members_of(build({"a.txt": b"before", "bad.gz": stub, "c.txt": b"behind"}))
    assert {name: (member.status, member.reason_code) for name, member in members.items()} == {
        "a.txt": ("ok", ""),
        "bad.gz": ("failed", "corrupt"),
        "c.txt": ("ok", ""),
    }


@pytest.mark.parametrize("error", [IndexError, struct.error, KeyError, AssertionError, MemoryError])
@pytest.mark.parametrize("place", ["identify", "read_archive", "decode"])
def test_whatever_a_parser_raises_is_the_row_of_that_member_alone(monkeypatch, place, error):
    parse, hostile = getattr(document_module, place), gzip.compress(b"hostile", mtime=0)
    bad = b"hostile" if place == "decode" else hostile

    def parse_or_fail(data: bytes, *arguments: object) -> object:
        if data == bad:
            raise error("odd bytes")
        return parse(data, *arguments)

    monkeypatch.setattr(document_module, place, parse_or_fail)
    members = members_of(zip_of({"a.txt": b"before", "bad": bad, "c.txt": b"behind"}))
    assert [member.status for member in members.values()] == ["ok", "failed", "ok"]
    expected = "memory" if error is MemoryError else error.__name__
    assert expected in members["bad"].reason


def test_a_damaged_inner_archive_is_a_row_of_its_own():
    found = members_of(zip_of({"inner.zip": zip_of(CONTENTS)[:60], "b.txt": b"x"}))
    assert (found["inner.zip"].status, found["inner.zip"].reason_code) == ("failed", "corrupt")
    assert found["b.txt"].status == "ok"


@pytest.mark.parametrize("seed", range(40))
def test_random_damage_always_ends_in_an_outcome(seed):
    noise = random.Random(seed)
    build = noise.choice(
        [zip_of, tar_of, lambda entries: gzip.compress(tar_of(entries)), lambda entries: lzma.compress(tar_of(entries))]
    )
    data = bytearray(build(CONTENTS))
    for _ in range(noise.randint(1, 20)):
        data[noise.randrange(4, len(data))] = noise.randrange(256)
    outcome = extract_document(bytes(data), ".zip", SMALL)
    for row in (outcome, *outcome.members):
        assert row.status == "ok" or row.reason
        assert row.reason_code != "crashed"


# Encryption

# Python reads encrypted ZIPs but writes none, so the traditional cipher is spelled out here.


def encrypted_zip(name: str, content: bytes, password: bytes) -> bytes:
    """A ZIP with one entry that the traditional cipher encrypts."""
    keys = [0x12345678, 0x23456789, 0x34567890]

    def crc(byte: int, value: int) -> int:
        return (value >> 8) ^ CRC_TABLE[(value ^ byte) & 0xFF]

    def update(byte: int) -> None:
        keys[0] = crc(byte, keys[0])
        keys[1] = ((keys[1] + (keys[0] & 0xFF)) * 134775813 + 1) & 0xFFFFFFFF
        keys[2] = crc(keys[1] >> 24, keys[2])

    for byte in password:
        update(byte)
    checksum = zlib.crc32(content)
    secret = bytearray()
    for byte in bytes(11) + bytes([checksum >> 24]) + content:
        mask = keys[2] | 2
        secret.append(byte ^ (((mask * (mask ^ 1)) >> 8) & 0xFF))
        update(byte)
    sizes = struct.pack("<LLL", checksum, len(secret), len(content))
    names = name.encode()
    local = b"PK\x03\x04" + struct.pack("<HHHHH", 20, 1, 0, 0, 33) + sizes + struct.pack("<HH", len(names), 0) + names
    central = b"PK\x01\x02" + struct.pack("<HHHHHH", 20, 20, 1, 0, 0, 33) + sizes
    central += struct.pack("<HHHHHLL", len(names), 0, 0, 0, 0, 0, 0) + names
    end = struct.pack("<HHHHLLH", 0, 0, 1, 1, len(central), len(local) + len(secret), 0)
    return local + bytes(secret) + central + b"PK\x05\x06" + end


def crc_table() -> list[int]:
    """The table of the CRC-32 polynomial."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0xEDB88320 if value & 1 else 0)
        table.append(value)
    return table


CRC_TABLE = crc_table()


def test_an_encrypted_member_without_a_password_is_rejected():
    member = members_of(encrypted_zip("a.txt", b"secret words", b"open"))["a.txt"]
    assert (member.status, member.reason_code) == ("rejected", "encrypted")


def test_wrong_passwords_are_told_apart_from_damage():
    member = members_of(encrypted_zip("a.txt", b"secret words", b"open"), passwords=["one", "two"])["a.txt"]
    assert (member.status, member.reason_code) == ("rejected", "encrypted")
    assert "2 passwords" in member.reason


def test_the_passwords_are_tried():
    member = members_of(encrypted_zip("a.txt", b"secret words", b"open"), passwords=["wrong", "open"])["a.txt"]
    assert text_of(member) == "secret words"


def test_aes_says_what_it_is():
    data = bytearray(zip_of({"a.txt": b"x"}))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = data.index(signature) + offset
        data[place : place + 4] = struct.pack("<HH", 1, 99)
    member = members_of(bytes(data))["a.txt"]
    assert (member.status, member.reason_code) == ("rejected", "encrypted")
    assert "AES" in member.reason


# Order of what is yielded


@pytest.mark.parametrize("skip", range(5))
def test_members_that_are_done_are_passed_over_without_a_word(skip):
    data = zip_of({"a.txt": b"1", "b.zip": zip_of({"c.txt": b"2", "d.txt": b"3"}), "../e": b"4"})
    whole = [item for item in yield_document(data, "", OPTIONS) if isinstance(item, Extraction)]
    rest = [item for item in yield_document(data, "", OPTIONS, skip=skip) if isinstance(item, Extraction)]
    assert rest == whole[skip:]
    assert len(whole) == 4


def test_a_pdf_inside_an_archive_is_read_page_by_page():
    items = list(yield_document(zip_of({"a.pdf": text_pdf(["first page", "second page"], title="T")}), "", OPTIONS))
    assert items[:3] == ["a.pdf", None, None]
    member = items[3]
    assert isinstance(member, Extraction)
    assert (member.kind, member.title, [page.page for page in member.pages]) == ("pdf", "T", [1, 2])
    assert "second page" in member.pages[1].text


def test_passwords_reach_a_pdf_inside_an_archive():
    data = zip_of({"a.pdf": encrypted_pdf("secret words", "open", "AES-256")})
    assert members_of(data)["a.pdf"].reason_code == "encrypted"
    assert "secret words" in text_of(members_of(data, passwords=["open"])["a.pdf"])


def test_what_lies_in_an_archive_and_an_entry_that_is_called_so_have_locators_of_their_own():
    inner = zip_of({"x.txt": b"inside\n"})
    found = members_of(zip_of({"a.zip": inner, "a.zip/x.txt": b"beside\n", "b.txt": b"b\n"}))
    assert {locator: text_of(member) for locator, member in found.items()} == {
        "a.zip/x.txt": "inside\n",
        "a.zip/x.txt%232": "beside\n",
        "b.txt": "b\n",
    }


def test_locators_stay_unique_where_numbers_meet_too():
    inner = zip_of({"x": b"1"})
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("a.zip", inner)
        for _ in range(3):
            archive.writestr("a.zip/x", b"words")
    assert sorted(members_of(file.getvalue())) == ["a.zip/x", "a.zip/x%232", "a.zip/x%232%232", "a.zip/x%233"]
