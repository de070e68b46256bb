"""Licences: told by a tag or by their wording, and by nothing else."""

from __future__ import annotations

from importlib.metadata import distributions
from pathlib import Path

import pytest

from tasks.text.licences import detect_licence, is_licence_file

SYSTEM = Path("/usr/share/common-licenses")
GRANT = (
    "Permission is hereby granted, free of charge, to any person obtaining a copy of this thing, to deal\n"
    "in the Software without restriction. The above notice shall be included in all copies."
)
BSD = "Redistribution and use in source and binary forms, with or without\nmodification, are permitted."


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Apache-2.0", "Apache-2.0"),
        ("BSD", "BSD-3-Clause"),
        ("CC0-1.0", "CC0-1.0"),
        ("GPL-2", "GPL-2.0-only"),
        ("GPL-3", "GPL-3.0-only"),
        ("LGPL-2", "LGPL-2.0-only"),
        ("LGPL-2.1", "LGPL-2.1-only"),
        ("LGPL-3", "LGPL-3.0-only"),
        ("MPL-1.1", "MPL-1.1"),
        ("MPL-2.0", "MPL-2.0"),
        ("GFDL-1.3", None),
        ("Artistic", None),
    ],
)
def test_the_licences_of_the_system_are_told_apart(name: str, expected: str | None) -> None:
    if not (SYSTEM / name).is_file():
        pytest.skip(f"{SYSTEM / name} is not installed")
    assert detect_licence((SYSTEM / name).read_text(encoding="utf-8")) == expected


@pytest.mark.parametrize(
    ("package", "expected"),
    [
        ("pydantic", "MIT"),
        ("numpy", "BSD-3-Clause"),
        ("requests", "Apache-2.0"),
        ("certifi", "MPL-2.0"),
        ("idna", "BSD-3-Clause"),
        ("pytest", "MIT"),
        ("typing_extensions", "PSF-2.0"),
    ],
)
def test_the_licences_of_installed_packages_are_told(package: str, expected: str) -> None:
    found = [
        Path(str(entry.locate()))
        for one in distributions(name=package)
        for entry in one.files or []
        if entry.name in ("LICENSE", "LICENSE.txt", "LICENSE.md")
        and ".dist-info" in str(entry)
        and len(entry.parts) < 4
    ]
    if not found:
        pytest.skip(f"{package} is not installed, or without its licence")
    assert detect_licence(found[0].read_text(encoding="utf-8")) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# SPDX-License-Identifier: MIT\nprint()", "MIT"),
        ("/* SPDX-License-Identifier: GPL-2.0-or-later OR MIT */", "GPL-2.0-or-later OR MIT"),
        ("<!-- SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception -->", "Apache-2.0 WITH LLVM-exception"),
        ("// SPDX-License-Identifier: (MIT OR Apache-2.0) AND BSD-3-Clause\n", "(MIT OR Apache-2.0) AND BSD-3-Clause"),
        ("SPDX-License-Identifier: LicenseRef-Farm", "LicenseRef-Farm"),
        (f"SPDX-License-Identifier: ISC\n{GRANT}", "ISC"),
        (GRANT, "MIT"),
        ("\n".join(f" * {line.upper()}" for line in GRANT.split("\n")), "MIT"),
        (GRANT.replace("The above notice shall be included", "Keep it"), "MIT-0"),
        (f"{BSD} Redistributions in binary form must reproduce this.", "BSD-2-Clause"),
        (f"{BSD} The name may not be used to endorse or promote products derived from it.", "BSD-3-Clause"),
        (f"{BSD} All advertising materials mentioning features of it must say so.", "BSD-4-Clause"),
        ('Licensed under the Apache License, Version 2.0 (the "License");', "Apache-2.0"),
        (
            "you can redistribute it and/or modify\n# it under the terms of the GNU General Public License as "
            "published by the\n# FSF; either version 3 of the License, or (at your option) any later version.",
            "GPL-3.0-or-later",
        ),
        (
            "redistribute it and/or modify it under the terms of the GNU Lesser General Public License version 2.1",
            "LGPL-2.1-only",
        ),
        (
            "redistribute it and/or modify it under the terms of the GNU Affero General Public License, either version "
            "3 of the License, or any later version",
            "AGPL-3.0-or-later",
        ),
        ("Subject to the terms of the Mozilla Public License, v. 2.0.", "MPL-2.0"),
        ("Permission to use, copy, modify, and/or distribute this software for any purpose, "
         "provided that the copyright notice and this permission notice appear in all copies", "ISC"),
        ("This is free and unencumbered software released into the public domain.", "Unlicense"),
        ("Altered source versions must be plainly marked as such, and must not be misrepresented", "Zlib"),
        ("Eclipse Public License - v 2.0", "EPL-2.0"),
        ("Boost Software License - Version 1.0", "BSL-1.0"),
        ("Creative Commons Attribution 4.0 International Public License", "CC-BY-4.0"),
        ("Creative Commons Attribution-ShareAlike 4.0 International (licence)", "CC-BY-SA-4.0"),
        ("Creative Commons Attribution-NonCommercial-ShareAlike 4.0 International License", "CC-BY-NC-SA-4.0"),
    ],
)  # fmt: skip
def test_a_tag_or_the_wording_tells_the_licence(text: str, expected: str) -> None:
    assert detect_licence(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A manual about the MIT License, the GNU General Public License and how to choose between licences.",
        "My driving licence expires in May.",
        "x" * 30_000 + GRANT,
        "SPDX-License-Identifier:",
        "Permission to use the meadow is granted.",
    ],
)
def test_a_text_about_something_else_has_none(text: str) -> None:
    assert detect_licence(text) is None


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "filling", [" ", "licence ", "SPDX-License-Identifier: (MIT ", "SPDX-License-Identifier: A OR ", "*"]
)
def test_long_texts_take_no_longer_than_others(filling: str) -> None:
    assert detect_licence("license" + filling * 200_000) != ""


@pytest.mark.parametrize(
    "name",
    ["LICENSE", "LICENCE", "license.txt", "License.md", "LICENSE.rst", "LICENSE-MIT", "LICENSE_APACHE.txt", "COPYING",
     "COPYING.LESSER", "COPYING.LIB", "UNLICENSE", "MIT-LICENSE", "mit_license.txt", "LICENSES", "licenses.txt",
     "LICENSE-2.0.txt", "COPYRIGHT"],
)  # fmt: skip
def test_files_that_hold_a_licence_are_known_by_their_names(name: str) -> None:
    assert is_licence_file(name)


@pytest.mark.parametrize(
    "name",
    ["license.py", "licences.py", "copying.c", "LicenseView.java", "README", "",
     "licence-form-of-2026-and-much-more.pdf.bak.old.copy", "relicensing.md", "licensed.txt", "license.json"],
)  # fmt: skip
def test_other_files_are_not(name: str) -> None:
    assert not is_licence_file(name)
