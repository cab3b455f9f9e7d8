"""Checks of the machine: accelerators, sandboxes, programs, and limits that a run may hit."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

from envsuite.data.places import WRITABLE, data_root
from envsuite.data.progress import format_size
from envsuite.installation.check import InstallationCheck, Status
from envsuite.installation.probes import SANDBOX, TORCH, last_object, python, tool

GIB = 1 << 30
QUICKSTART_MEMORY = 3 * GIB
"""Bytes of memory that the quick start stays under."""
QUICKSTART_DISK = 200 << 20
FEW_FILES = 1024
SMALL_SHARED_MEMORY = 1 * GIB
_CUDA_BUILD = "install a CUDA build of the same version: https://pytorch.org/get-started/locally/ has the command"


def accelerators() -> list[InstallationCheck]:
    """The driver's view of the GPUs, torch's, and whether they agree."""
    driver = _driver()
    checks = [driver]
    probe = python(TORCH)
    facts = last_object(probe.out) if probe.code == 0 else None
    if facts is None:
        why = "is not installed" if "No module named 'torch'" in probe.why else f"cannot be imported: {probe.why}"
        return [*checks, InstallationCheck("accelerator", "torch's view", "absent", f"torch {why}")]
    build = f"CUDA {facts['cuda']}" if facts["cuda"] else f"ROCm {facts['hip']}" if facts["hip"] else "CPU only"
    head = f"torch {facts['version']}, built for {build}"
    if driver.status == "ok" and not facts["available"]:
        mend = _CUDA_BUILD if not facts["cuda"] else "the driver is older than this CUDA build, or hides its devices"
        return [*checks, InstallationCheck("accelerator", "torch's view", "warning", f"{head}; it sees no GPU", mend)]
    devices = "; ".join(_device(device) for device in facts["devices"]) or ("Apple GPU" if facts["mps"] else "no GPU")
    checks.append(InstallationCheck("accelerator", "torch's view", "ok", f"{head}; {devices}"))
    if facts["available"]:
        bf16 = "in hardware" if facts["bf16"] else "not in hardware: leave model.compute_dtype at float32"
        checks.append(InstallationCheck("accelerator", "bfloat16", "ok" if facts["bf16"] else "absent", bf16))
    if not facts["flex"] or not facts["available"]:
        flex = "model.attention: flex needs a GPU" if facts["flex"] else "not in this torch"
        checks.append(InstallationCheck("accelerator", "FlexAttention", "absent", flex))
    else:
        checks.append(InstallationCheck("accelerator", "FlexAttention", "ok", "usable as model.attention: flex"))
    return checks


def _driver() -> InstallationCheck:
    query = ["--query-gpu=name,driver_version,memory.total,compute_cap", "--format=csv,noheader"]
    probe = tool("nvidia-smi", *query)
    if probe is None:
        if Path("/proc/driver/nvidia/version").exists():
            mend = "in a container: start it with --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility"
            finding = "loaded, but nvidia-smi is not on the path"
            return InstallationCheck("accelerator", "NVIDIA driver", "warning", finding, mend)
        finding = "no nvidia-smi on the path; training runs on the CPU"
        return InstallationCheck("accelerator", "NVIDIA driver", "absent", finding)
    if probe.code != 0:
        words = probe.out.strip().splitlines()
        finding = f"nvidia-smi fails: {words[-1] if words else probe.why}"
        mend = "install the driver again, or restart after its update"
        return InstallationCheck("accelerator", "NVIDIA driver", "warning", finding, mend)
    gpus = [line.strip() for line in probe.out.splitlines() if line.strip()]
    return InstallationCheck("accelerator", "NVIDIA driver", "ok" if gpus else "absent", "; ".join(gpus) or "no GPU")


def _device(device: dict[str, Any]) -> str:
    major, minor = device["capability"]
    return f"{device['name']}, {device['memory'] / GIB:.0f} GiB, capability {major}.{minor}"


def sandboxes() -> list[InstallationCheck]:
    """Each sandbox that can isolate the code of a model, tried."""
    probe = python(SANDBOX, seconds=180.0)
    reasons = last_object(probe.out) if probe.code == 0 else None
    if reasons is None:
        return [InstallationCheck("sandbox", "interpreter", "broken", f"could not be tried: {probe.why}")]
    checks = []
    for name, why in reasons.items():
        finding = why.splitlines()[0] if why else "isolates code of a model"
        checks.append(InstallationCheck("sandbox", name, "absent" if why else "ok", finding))
    if all(reasons.values()):
        mend = (
            "sysctl user.max_user_namespaces=65536 and kernel.apparmor_restrict_unprivileged_userns=0, or the "
            "interpreter's container: docker compose -f docker/compose.yaml up interpreter"
        )
        finding = "no sandbox works here, so PythonMath-v0 runs no code of a model on this machine"
        checks.append(InstallationCheck("sandbox", "PythonMath-v0", "warning", finding, mend))
    return checks


def programs() -> list[InstallationCheck]:
    """Programs that some features use."""
    checks = []
    java = tool("java", "-version")
    if java is None or java.code != 0:
        finding = "none on the path; only the comparison with Lucene uses one" if java is None else f"fails: {java.why}"
        checks.append(InstallationCheck("programs", "JVM", "absent", finding, "pip install 'envsuite[webshop-lucene]'"))
    else:
        checks.append(InstallationCheck("programs", "JVM", "ok", java.why))
    docker = tool("docker", "version", "--format", "{{.Server.Version}}")
    if docker is None:
        checks.append(InstallationCheck("programs", "docker", "absent", "not on the path; only the containers need it"))
    elif docker.code != 0:
        mend = "start its daemon, or add this user to the group docker"
        checks.append(InstallationCheck("programs", "docker", "warning", f"no server answers: {docker.why}", mend))
    else:
        checks.append(InstallationCheck("programs", "docker", "ok", f"server {docker.out.strip()}"))
    return checks


def limits() -> list[InstallationCheck]:
    """Cores, memory, shared memory, open files, and room on the disks."""
    return [_cores(), _memory(), *_shared_memory(), _open_files(), _work_folder(), _disk("data folder", data_root())]


def _cores() -> InstallationCheck:
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    threads = os.environ.get("OMP_NUM_THREADS")
    return InstallationCheck("limits", "CPU cores", "ok", f"{count}{f', OMP_NUM_THREADS={threads}' if threads else ''}")


def _memory() -> InstallationCheck:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    sizes = [total, _number(Path("/sys/fs/cgroup/memory.max")), resource.getrlimit(resource.RLIMIT_AS)[0]]
    least = min(size for size in sizes if size is not None and size > 0)
    if least < QUICKSTART_MEMORY:
        mend = "raise the container's memory (docker run --memory 4g) or ulimit -v"
        finding = f"{format_size(least)}; the quick start takes up to {format_size(QUICKSTART_MEMORY)}"
        return InstallationCheck("limits", "memory", "warning", finding, mend)
    return InstallationCheck("limits", "memory", "ok", f"{format_size(least)}{' (limited)' if least < total else ''}")


def _number(file: Path) -> int | None:
    """Returns the number in a file of the kernel; ``None`` where there is no file or no limit."""
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _shared_memory() -> list[InstallationCheck]:
    if sys.platform != "linux":
        return []
    mend = "docker run --shm-size 8g, or shm_size in compose (docs/containers.md has sizes by model)"
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError as error:
        return [InstallationCheck("limits", "shared memory", "warning", f"/dev/shm: {error.strerror}", mend)]
    finding = f"/dev/shm has {format_size(usage.free)} free of {format_size(usage.total)}"
    if usage.free >= SMALL_SHARED_MEMORY:
        return [InstallationCheck("limits", "shared memory", "ok", finding)]
    finding += "; NCCL needs some, and weights on their way to vLLM 3 GB of a model of 1.5B, 15 GB of 7B, in bfloat16"
    return [InstallationCheck("limits", "shared memory", "warning", finding, mend)]


def _open_files() -> InstallationCheck:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "no limit" if hard == resource.RLIM_INFINITY else f"at most {hard}"
    if soft == resource.RLIM_INFINITY:
        return InstallationCheck("limits", "open files", "ok", "no limit")
    if soft <= FEW_FILES:
        target = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
        mend = f"ulimit -n {target}" if target > soft else "raise nofile in /etc/security/limits.conf"
        finding = f"{soft} ({most}); servers with hundreds of sessions need more"
        return InstallationCheck("limits", "open files", "warning", finding, mend)
    return InstallationCheck("limits", "open files", "ok", f"{soft} ({most})")


def _work_folder() -> InstallationCheck:
    """The folder where ``runs/`` would be made."""
    here = Path.cwd()
    free = shutil.disk_usage(here).free
    if not os.access(here, os.W_OK | os.X_OK):
        mend = "change to a folder of yours"
        return InstallationCheck("limits", "this folder", "broken", "cannot be written", mend, True)
    if free < QUICKSTART_DISK:
        finding = f"{format_size(free)} free; the quick start needs {format_size(QUICKSTART_DISK)}"
        mend = "make room, or change to another folder"
        return InstallationCheck("limits", "this folder", "broken", finding, mend, True)
    return InstallationCheck("limits", "this folder", "ok", f"{format_size(free)} free", required=True)


def _disk(name: str, folder: Path) -> InstallationCheck:
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return InstallationCheck("limits", name, "warning", f"{folder} cannot be written", WRITABLE)
    status: Status = "ok" if free > GIB else "warning"
    return InstallationCheck("limits", name, status, f"{folder}: {format_size(free)} free", WRITABLE * (free <= GIB))
