"""``envsuite doctor`` on machines with this or that broken."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from envsuite.installation import checks, doctor, machine, probes
from envsuite.installation.check import InstallationCheck
from envsuite.installation.packages import Dependency
from envsuite.installation.probes import ProbeOutput

GIB = 1 << 30


def by_name(found: list[InstallationCheck]) -> dict[str, InstallationCheck]:
    return {check.name: check for check in found}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ImportError('libtorch_cpu.so: cannot open shared object file')", "libtorch_cpu.so"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal 11"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import os; os._exit(0)", "ends the process"),
        ("raise ImportError", "ImportError"),
    ],
    ids=["fails", "crashes", "exits", "vanishes", "fails without a word"],
)
def test_a_module_that_cannot_be_imported_is_named_and_the_others_are_tried(stand_in, body, words):
    stand_in("yaml", body)
    told = probes.try_imports(["json", "yaml", "csv"])
    assert told["json"] == told["csv"] == "" and words in told["yaml"]


def test_a_torch_that_breaks_at_import_is_an_answer(tmp_path, monkeypatch, stand_in):
    stand_in("torch", "raise OSError('undefined symbol: x')")
    monkeypatch.setenv("PATH", str(tmp_path))  # and no nvidia-smi
    driver, view = machine.accelerators()
    assert driver.status == "absent" and "no nvidia-smi" in driver.found
    assert view.status == "absent" and "undefined symbol" in view.found


@pytest.mark.parametrize(
    ("script", "status", "words"),
    [
        ("echo 'NVIDIA H100 80GB HBM3, 570.1, 81559 MiB, 9.0'", "ok", "H100"),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "warning", "mismatch"),
        ("exit 9", "warning", "exit status 9"),
        ("kill -9 $$", "warning", "signal 9"),
        ("printf '\\377\\376'", "ok", ""),
    ],
    ids=["a GPU", "mismatch", "silent", "killed", "no text"],
)
def test_whatever_nvidia_smi_says_is_told(program, script, status, words):
    program("nvidia-smi", script)
    found = machine._driver()
    assert found.status == status and words in found.found


TORCH = {"version": "2.13.0", "cuda": None, "hip": None, "devices": [], "available": False, "bf16": False}
H100 = {"name": "H100", "memory": 80 * GIB, "capability": [9, 0]}


@pytest.mark.parametrize(
    ("told", "status", "words"),
    [
        ({}, "warning", "sees no GPU"),
        ({"cuda": "13.0"}, "warning", "sees no GPU"),
        ({"cuda": "13.0", "available": True, "devices": [H100], "bf16": True}, "ok", "H100, 80 GiB, capability 9.0"),
    ],
    ids=["CPU build", "old driver", "works"],
)
def test_a_torch_that_does_not_see_what_the_driver_sees_is_a_warning(monkeypatch, program, told, status, words):
    program("nvidia-smi", "echo 'NVIDIA H100, 570.1, 81559 MiB, 9.0'")
    answer = json.dumps({**TORCH, "mps": False, "flex": True, **told})
    monkeypatch.setattr(machine, "python", lambda code: ProbeOutput(0, answer, ""))
    view = by_name(machine.accelerators())["torch's view"]
    assert view.status == status and words in view.found
    assert bool(view.remedy) == (status == "warning")


@pytest.mark.parametrize("name", ["java", "docker"])
def test_programs_that_fail_or_are_missing_are_told(tmp_path, monkeypatch, program, name):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert {check.status for check in machine.programs()} == {"absent"}
    program(name, "echo it is broken >&2; exit 1")
    (failing,) = [check for check in machine.programs() if "broken" in check.found]
    assert failing.status in ("absent", "warning") and failing.remedy


def test_data_that_are_damaged_or_cannot_be_read_are_told_with_what_mends_them(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path))
    assert by_name(checks.data())["webshop"].status == "absent"
    (tmp_path / "webshop").mkdir()
    (tmp_path / "webshop/items_shuffle_1000.json").write_text("[")
    shop = by_name(checks.data())["webshop"]
    assert (shop.status, shop.remedy) == ("broken", "envsuite data fetch webshop")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path / "file"))
    found = by_name(checks.data())
    assert found["alfworld"].status in ("absent", "broken")
    assert found["cache"].status == "broken" and "cannot be read" in found["cache"].found
    assert machine._disk("data folder", tmp_path / "file").status == "warning"

    def refused(one: object) -> None:
        raise PermissionError(13, "Permission denied", "/data")

    monkeypatch.setattr(checks, "state", refused)
    assert {check.status for check in checks.data()} == {"broken"}


def test_a_full_disk_stops_the_quick_start(monkeypatch):
    full = SimpleNamespace(total=100 * GIB, used=100 * GIB, free=1 << 20)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda folder: full)
    found = by_name(machine.limits())
    assert found["this folder"].stops_quickstart and "make room" in found["this folder"].remedy
    assert found["data folder"].status == "warning"


def test_small_limits_come_with_what_raises_them(monkeypatch):
    for hard, remedy in ((4096, "ulimit -n 4096"), (256, "limits.conf")):
        monkeypatch.setattr(machine.resource, "getrlimit", lambda which, hard=hard: (256, hard))
        assert remedy in machine._open_files().remedy
    monkeypatch.setattr(machine.resource, "getrlimit", lambda which: (2 * GIB, 2 * GIB))
    assert machine._memory().status == "warning"


def test_an_extra_tells_what_is_missing_from_what_is_of_another_version():
    torch, yaml = Requirement("torch==2.13.0"), Requirement("pyyaml>=6")
    for extra, version, status, words, stops in (
        ("train", None, "absent", "torch==2.13.0", True),
        ("train", "2.12.0", "broken", "torch 2.12.0, but torch==2.13.0", True),
        ("train", "2.13.0+cpu", "ok", "torch 2.13.0+cpu", False),
        ("lora", None, "absent", "torch==2.13.0", False),
    ):
        told = checks._extra(extra, [Dependency(torch, version), Dependency(yaml, "6.0")], [torch, yaml])
        assert (told.status, told.stops_quickstart) == (status, stops) and words in told.found
        assert told.remedy == ("" if status == "ok" else f"pip install 'envsuite[{extra}]'")
    included = [Requirement("envsuite[train]"), yaml]
    assert checks._extra("docs", [Dependency(yaml, "6.0"), Dependency(torch, "2.13")], included).found == (
        "pyyaml 6.0, [train]"
    )


@given(
    st.lists(
        st.builds(
            InstallationCheck,
            st.sampled_from(["packages", "limits"]),
            st.text("abc[]-", min_size=1, max_size=22),
            st.sampled_from(["ok", "absent", "warning", "broken"]),
            st.text("ab /-'=\n", max_size=300),
            st.text("ab /-'=", max_size=120),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(10, 120),
)
def test_lines_fit_the_terminal_and_no_word_is_broken(found, width):
    text = doctor.format_checks(found, width)
    words = {word for check in found for word in check.found.split()}
    assert words <= set(text.split())
    head = max(len(check.name) for check in found) + 12
    for line in text.splitlines():
        assert len(line) <= max(width, head + doctor.NARROWEST) or len(line.split()) <= 3 or "quick start" in line
    assert all(check.remedy.split() == [] or "→" in text for check in found if check.status != "ok")


def test_a_conflict_is_told_as_pip_words_it(monkeypatch):
    lines = "fastmcp 3.4 has requirement mcp<2, but you have mcp 2.3.\nx 1 requires y, which is not installed.\n"
    for said, status, words in (
        (ProbeOutput(1, lines, ""), "warning", "fastmcp 3.4 has requirement"),
        (ProbeOutput(1, "", "No module named pip"), "absent", ""),
    ):
        monkeypatch.setattr(checks, "module", lambda *words, seconds, said=said: said)
        (conflict,) = checks.conflicts()
        assert conflict.status == status and conflict.found.startswith(words)


def test_a_check_that_fails_leaves_the_others():
    def breaks() -> list[InstallationCheck]:
        raise RuntimeError("of all things")

    found = doctor.examine((("data", breaks), ("limits", machine.limits)))
    assert found[0].status == "broken" and "of all things" in found[0].found
    assert len(found) > 3 and "of all things" in doctor.format_checks(found)


def test_text_and_json_and_exit_status_agree(monkeypatch, capsys):
    good = InstallationCheck("packages", "base", "ok", "all there", required=True)
    bad = InstallationCheck(
        "packages", "[train]", "absent", "not installed: torch", "pip install 'envsuite[train]'", True
    )
    for found, code in (([good], 0), ([good, bad], 1)):
        monkeypatch.setattr(doctor, "examine", lambda found=found: found)
        assert doctor.run(argparse.Namespace(json=True)) == code
        told = json.loads(capsys.readouterr().out)
        assert told["quickstart"] == (code == 0) and [one["name"] for one in told["checks"]] == [c.name for c in found]
        assert doctor.run(argparse.Namespace(json=False)) == code
        text = capsys.readouterr().out
        assert ("pip install 'envsuite[train]'" in text) == (code == 1)
        assert text.endswith("can run: envsuite quickstart\n" if code == 0 else "cannot run: mend [train] first\n")


@pytest.mark.slow
def test_the_doctor_survives_a_broken_installation(tmp_path, stand_in):
    """A torch and a PyYAML that break at import, no programs on the path, a file where the data folder should be."""
    stand_in("torch", "raise ImportError('libcudart.so.13')")
    stand_in("yaml", "1 / 0")
    (tmp_path / "data").write_text("")
    (tmp_path / "bin").mkdir()
    command = [sys.executable, "-m", "envsuite.cli", "doctor", "--json"]
    variables = {**os.environ, "PATH": str(tmp_path / "bin"), "ENVSUITE_DATA": str(tmp_path / "data")}
    run = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300)
    told = json.loads(run.stdout)
    assert (run.returncode, run.stderr, told["quickstart"]) == (1, "", False)
    assert {one["section"] for one in told["checks"]} == {section for section, _ in doctor.PARTS}
    broken = {one["name"]: one for one in told["checks"] if one["status"] == "broken"}
    assert "libcudart" in broken["torch"]["found"] and "ZeroDivisionError" in broken["pyyaml"]["found"]
    assert all(one["remedy"] for one in broken.values())
