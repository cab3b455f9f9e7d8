"""``envsuite doctor`` takes a step of each extra, and looks at what runs on a GPU depend on.

Libraries that are broken here are stand-ins: modules of the same name, first on the path.

Requirements of extras, and versions that fulfil them.
"""

import json
import os
import subprocess
import sys

import pytest
from packaging.requirements import Requirement
from test_doctor import by_name
from vllm_interpreters import vllm_interpreter

from envsuite.installation import extras, gpu, machine
from envsuite.installation.packages import Dependency, requirements, requirements_of
from envsuite.installation.probes import ProbeOutput
from envsuite.installation.tryout import STEPS
from envsuite.installation.vllm import installed_vllm
from trainers.programs.tryout import STEPS as OF_TRAINER


def test_each_extra_has_a_step():
    assert set(STEPS) | set(OF_TRAINER) == requirements().keys() - {"", "dev"}
    assert set(OF_TRAINER) == set(extras.OF_TRAINER) and not set(STEPS) & set(OF_TRAINER)


def test_an_extra_whose_packages_fit_but_do_not_work_is_broken(monkeypatch, stand_in):
    stand_in("uvicorn", "")
    stand_in("flask", "raise ImportError('cannot import name escape from jinja2')")
    monkeypatch.setattr(extras, "_installed_extras", lambda: ["webshop-play", "images"])
    found = by_name(extras.environments())
    assert found["[images]"].status == "ok"
    shop = found["[webshop-play]"]
    assert (shop.status, shop.remedy) == ("broken", "pip install 'envsuite[webshop-play]'")
    assert "cannot import name escape" in shop.found and not shop.required


def test_a_step_that_does_not_end_in_time_is_no_proof_of_a_broken_extra(monkeypatch):
    told = {"serve": "it ends the process: gave no answer within 300 s"}
    monkeypatch.setattr(extras, "try_names", lambda *_: told)
    monkeypatch.setattr(extras, "_installed_extras", lambda: ["serve"])
    (check,) = extras.environments()
    assert check.status == "warning" and "gave no answer" in check.found and check.remedy


@pytest.mark.slow
def test_an_adapter_that_transformers_refuses_is_told(tmp_path, monkeypatch):
    """As transformers 5.24 does beside the newest peft; the least version is raised before the program starts."""
    body = "import transformers.integrations.peft as found; found.MIN_PEFT_VERSION = '99.0'"
    (tmp_path / "sitecustomize.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(extras, "_installed_extras", lambda: ["train", "lora"])
    found = by_name(extras.trainer())
    assert found["[train]"].status == "ok" and found["[train]"].required
    assert found["[lora]"].status == "broken" and "99.0" in found["[lora]"].found


FORKS = "TOKENIZERS_PARALLELISM"


@pytest.mark.parametrize(
    ("name", "value", "vllm", "status"),
    [
        *((FORKS, value, None, "ok") for value in (None, "false", "0")),
        (FORKS, "true", None, "warning"),
        *((name, "max_split_size_mb:64, expandable_segments:True", "0.20.0", "warning") for name in gpu.ALLOCATOR),
        *((name, "expandable_segments:True", None, "ok") for name in gpu.ALLOCATOR),
        *((name, "", "0.20.0", "ok") for name in gpu.ALLOCATOR),
        *((name, "expandable_segments:False", "0.20.0", "ok") for name in gpu.ALLOCATOR),
    ],
)
def test_threads_that_outlive_a_fork_and_expandable_segments_beside_vllm_are_warned_of(
    monkeypatch, name, value, vllm, status
):
    for other in (FORKS, *gpu.ALLOCATOR):
        monkeypatch.delenv(other, raising=False)
    if value is not None:
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(gpu, "version_of", lambda package: vllm)
    check = by_name(gpu.variables())[FORKS if name == FORKS else "allocator"]
    assert check.status == status and (name in check.remedy) == (status == "warning")


def test_a_flash_attention_of_another_torch_is_told_in_a_line(stand_in):
    symbol = "flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E"
    stand_in("flash_attn", f"raise ImportError({symbol!r} + chr(10) + 'more')")
    found = by_name(gpu.flash_attention())
    check = found["flash-attn"]
    assert check.status == "broken" and symbol in check.found and "\n" not in check.found
    assert "--no-build-isolation" in check.remedy and not check.required
    assert found["flash-attn-3"].status == "absent"


@pytest.mark.parametrize(
    ("vllm", "torch", "status", "said"),
    [
        (
            None,
            "2.13.0",
            "absent",
            "vLLM 0.32 goes into one environment with torch 2.13.0, others need one of their own",
        ),
        ("0.32.0", "2.13.0", "ok", "vLLM 0.32.0 with torch 2.13.0 in {}; for servers, not for place: process"),
        ("0.33.0", "2.14.0", "ok", "vLLM 0.33.0 with torch 2.14.0 in {}; for servers, not for place: process"),
        ("0.33.0", "2.13.0", "broken", "vLLM 0.33.0 wants torch==2.14.0, and {} has 2.13.0"),
        ("0.40.0", "2.14.0", "warning", "vLLM 0.40.0 with torch 2.14.0 in {}; tested were 0.32 and 0.33"),
    ],
)
def test_the_doctor_says_which_vllm_there_is_and_whether_it_goes_with_its_torch(
    vllm, torch, status, said, tmp_path, monkeypatch
):
    python = vllm_interpreter(tmp_path, vllm, torch)
    monkeypatch.setenv("ENVSUITE_VLLM_PYTHON", python)
    monkeypatch.setattr("envsuite.installation.vllm.version_of", {"torch": "2.13.0+cpu"}.get)
    (check,) = installed_vllm()
    assert check.status == status and said.format(python) in check.found and not check.required
    assert ("python -m venv vllm-env" in check.remedy) == (status in ("absent", "broken"))


@pytest.mark.parametrize(("slow", "status"), [(True, "warning"), (False, "ok")])
def test_a_cpu_that_is_slow_in_bfloat16_is_told_with_the_setting(monkeypatch, slow, status):
    answer = json.dumps({"float32": 49e9, "bfloat16": 1.1e9, "slow": slow})
    monkeypatch.setattr(gpu, "python", lambda code: ProbeOutput(0, answer, ""))
    (check,) = gpu.bfloat16_on_cpu()
    assert check.status == status and "1.1 GFLOP/s" in check.found
    assert ("--model.compute_dtype float32" in check.remedy) == slow


@pytest.mark.slow
def test_speeds_are_measured_on_this_machine():
    (check,) = gpu.bfloat16_on_cpu()
    assert "GFLOP/s" in check.found


@pytest.mark.parametrize(
    ("total", "free", "status"),
    [(64 << 20, 63 << 20, "warning"), (16 << 30, 1 << 20, "warning"), (16 << 30, 15 << 30, "ok")],
)
def test_little_room_in_shared_memory_is_told_with_what_models_need(monkeypatch, total, free, status):
    usage = type("Usage", (), {"total": total, "free": free})
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda folder: usage)
    (check,) = machine._shared_memory()
    assert check.status == status and ("docker run --shm-size 8g" in check.remedy) == (status == "warning")
    assert ("1.5B" in check.found) == (status == "warning")


@pytest.mark.parametrize(
    ("version", "fits"), [("3.9", False), ("3.10", True), ("3.10+cpu", True), ("3.11rc1", True), (None, False)]
)
def test_a_version_fits_within_the_bounds_a_build_or_candidate_of_it_too(version, fits):
    dependency = Dependency(Requirement("x[y]>=3.10; extra == 'serve'"), version)
    assert dependency.fits is fits and dependency.specifier == "x[y]>=3.10"


def test_each_requirement_is_under_its_extra_and_those_without_one_under_the_base():
    by_extra = requirements()
    assert {"gymnasium", "numpy"} <= {requirement.name for requirement in by_extra[""]}
    assert {requirement.name for requirement in by_extra["serve"]} == {"flask", "uvicorn", "httptools"}


def test_an_extra_needs_what_the_extras_in_it_need():
    known = {
        "a": (Requirement("envsuite[b]"), Requirement("one")),
        "b": (Requirement("envsuite[a,c]"), Requirement("two")),
        "c": (Requirement("three"),),
    }
    assert {requirement.name for requirement in requirements_of("a", known)} == {"one", "two", "three"}


def test_nothing_is_imported_to_look_at_packages():
    code = (
        "import sys; from envsuite.installation.packages import requirements; requirements();"
        "print([m for m in ('torch', 'transformers', 'pyarrow', 'trainers') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
