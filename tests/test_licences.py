"""No file of the repository carries somebody else's licence: code of others comes from packages."""

import re
import subprocess

import pytest

NOTICE = re.compile(
    rb"copyright\s+(?:\(c\)|\xc2\xa9|\d{4})|spdx-licen[cs]e|licen[cs]ed under the|@licen[cs]e"
    rb"|permission is hereby granted"
    rb"|redistribution and use in source|mozilla public licen[cs]e|gnu (?:lesser )?general public",
    re.IGNORECASE,
)
OURS = {"LICENSE", "tests/test_licences.py"}


def test_no_file_carries_the_licence_of_somebody_else(root):
    if not (root / ".git").exists():
        pytest.skip("needs a checkout with git")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True, text=True).stdout
    files = [name for name in names.split("\0") if name and name not in OURS and (root / name).is_file()]
    assert [name for name in files if NOTICE.search((root / name).read_bytes())] == []
    assert [name for name in files if ".min." in name or re.search(r"(?:^|/)(?:vendor|third_party)/", name)] == []
