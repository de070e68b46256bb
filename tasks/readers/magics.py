"""First bytes that prove a format ("magic numbers"), each with its media type.

Some are letters only; whoever looks must then make sure that it is not a text that begins with them.
"""

from __future__ import annotations

PARQUET_MEDIA = "application/vnd.apache.parquet"
SQLITE_MEDIA = "application/vnd.sqlite3"

IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
    (b"II+\x00", "image/tiff"),
    (b"MM\x00+", "image/tiff"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
ARCHIVES = (
    (b"PK\x03\x04", "application/zip"),
    (b"PK\x05\x06", "application/zip"),
    (b"\x1f\x8b\x08", "application/gzip"),
    (b"BZh", "application/x-bzip2"),
    (b"\xfd7zXZ\x00", "application/x-xz"),
)
TABLES = ((b"SQLite format 3\x00", SQLITE_MEDIA), (b"PAR1", PARQUET_MEDIA))
BINARIES = (
    (b"\x28\xb5\x2f\xfd", "application/zstd"),
    (b"\x04\x22\x4d\x18", "application/x-lz4"),
    (b"\x1f\x9d", "application/x-compress"),
    (b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (b"Rar!\x1a\x07", "application/vnd.rar"),
    (b"MSCF\x00\x00\x00\x00", "application/vnd.ms-cab-compressed"),
    (b"\x7fELF", "application/x-executable"),
    (b"MZ", "application/vnd.microsoft.portable-executable"),
    (b"\xca\xfe\xba\xbe", "application/java-vm"),
    (b"\xcf\xfa\xed\xfe", "application/x-mach-binary"),
    (b"\xfe\xed\xfa\xcf", "application/x-mach-binary"),
    (b"dex\n03", "application/vnd.android.dex"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/x-ole-storage"),
    (b"PARE", PARQUET_MEDIA),
    (b"ARROW1\x00\x00", "application/vnd.apache.arrow.file"),
    (b"Obj\x01", "application/vnd.apache.avro"),
    (b"ORC", "application/vnd.apache.orc"),
    (b"\x89HDF\r\n\x1a\n", "application/x-hdf5"),
    (b"\x93NUMPY", "application/x-numpy"),
    (b"GGUF", "application/x-gguf"),
    (b"\x00asm", "application/wasm"),
    (b"8BPS\x00", "image/vnd.adobe.photoshop"),
    (b"\x00\x00\x01\x00", "image/vnd.microsoft.icon"),
    (b"\x00\x00\x00\x0cjP  ", "image/jp2"),
    (b"AT&TFORM", "image/vnd.djvu"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"MThd\x00\x00", "audio/midi"),
    (b"wOFF", "font/woff"),
    (b"wOF2", "font/woff2"),
    (b"OTTO", "font/otf"),
    (b"\x00\x01\x00\x00\x00", "font/ttf"),
    (b"\x1a\x45\xdf\xa3", "video/x-matroska"),
    (b"\xed\xab\xee\xdb", "application/x-rpm"),
    (b"!<arch>\n", "application/x-archive"),
)
# What stands after "ftyp" in files of the MPEG-4 family.
FILE_BRANDS = {
    b"avif": "image/avif",
    b"heic": "image/heic",
    b"heix": "image/heic",
    b"mif1": "image/heif",
    b"M4A ": "audio/mp4",
    b"qt  ": "video/quicktime",
}
