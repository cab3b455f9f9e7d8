"""One description of a run becomes the files of a cluster; what they say, and whether their readers accept it."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from envsuite import __version__, cli
from envsuite.remote.protocol import TOKEN_VARIABLE
from envsuite.serving.server import DRAIN_SECONDS
from trainers.papers.index import published_rows
from trainers.papers.settings import read_settings
from trainers.programs.launching.files import manifests
from trainers.programs.launching.job import job_of
from trainers.programs.launching.program import main
from trainers.programs.launching.roles import ClusterJob, JobSizes, dns_label
from trainers.run.cli import TRAIN, dump, parse, settings_file
from trainers.run.config import TrainConfig
from trainers.settings.shipped import shipped_configs

CONFIG = "configs/textcraft.yaml"
SIZES = {
    "one node of 8 GPUs": "--nodes 1 --gpus-per-node 8",
    "four nodes of 8 GPUs": "--nodes 4 --gpus-per-node 8",
    "four nodes of 8 GPUs, servers": "--nodes 4 --gpus-per-node 8 --servers 6",
    "vLLM on nodes of its own": "--nodes 2 --gpus-per-node 8 --rollout.engine vllm --vllm 12",
    "vLLM on the nodes that train": (
        "--nodes 2 --gpus-per-node 8 --rollout.engine vllm --vllm 4 --vllm-on shared --servers 2"
    ),
    "CPU only": "--nodes 2 --processes 2 --servers 2",
}
ELSEWHERE = replace(TRAIN, elsewhere=True)
"""Reads settings whose servers and folders are another machine's."""
sizes = pytest.mark.parametrize("words", [words.split() for words in SIZES.values()], ids=SIZES)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(target: str, *words: str) -> dict[str, str]:
    """The files that a command line writes, by their names."""
    shutil.rmtree("launch", ignore_errors=True)
    assert main([f"--{target}", "--config", CONFIG, *words]) == 0
    return {file.name: file.read_text("utf-8") for file in Path("launch/textcraft").iterdir() if file.is_file()}


def settings() -> TrainConfig:
    """The settings that were written, as the trainer reads them once the job has written addresses of servers."""
    for name in ("textcraft", "webshop", "vllm"):
        Path(f"launch/textcraft/{name}.servers").touch()
    return parse(["--config", "launch/textcraft/settings.yaml"], ELSEWHERE).config


def objects(*words: str) -> list[dict[str, Any]]:
    """The manifests of a job."""
    return [one for text in files("kubernetes", *words).values() for one in yaml.safe_load_all(text)]


def of_kind(kind: str, *words: str) -> list[dict[str, Any]]:
    return [one for one in objects(*words) if one["kind"] == kind]


def pods(*words: str) -> list[dict[str, Any]]:
    return [one["spec"]["template"]["spec"] for one in objects(*words) if one["kind"] in ("Job", "StatefulSet")]


def commands(script: str) -> list[str]:
    """What the steps of a batch script run."""
    return [text.replace("'\"'\"'", "'") for text in re.findall(r"bash -c '(.*)' &$", script, re.M)]


def parsed(command: str) -> argparse.Namespace:
    """The arguments of an ``envsuite serve http``, by its own parser."""
    words = command.removeprefix("exec envsuite ").replace("$HOST", "0.0.0.0").replace("$PORT", "8080").split()
    name, found, rest = cli.find(words, cli.available())
    assert name == "serve http"
    return cli.parse_words(name, found, rest)


@pytest.mark.seconds
def test_the_file_of_the_settings_has_the_same_settings():
    for name in (*shipped_configs(), *(run.name for run in published_rows())):
        if {*read_settings(name)} <= TrainConfig.__dataclass_fields__.keys() and "accelerate" not in name:
            config = parse(["--config", name, "--rollout.engine", "hf", "--rollout.engine_options", "{}"]).config
            Path("settings.yaml").write_text(settings_file(config), "utf-8")
            assert dump(parse(["--config", "settings.yaml"]).config) == dump(config), name


@sizes
def test_slurm_would_start_the_job(words):
    if shutil.which("sbatch") is None or subprocess.run(["scontrol", "ping"], capture_output=True).returncode:
        pytest.skip("no SLURM here; docs/clusters.md says how these scripts were tried")
    partition = os.environ.get("ENVSUITE_SLURM_GPUS", "gpu") if "--gpus-per-node" in words else None
    files("slurm", *words)
    where = ["--partition", partition] if partition else []
    tried = subprocess.run(
        ["sbatch", "--test-only", *where, "launch/textcraft/job.sbatch"], capture_output=True, text=True
    )
    assert tried.returncode == 0, tried.stderr


@sizes
def test_kubernetes_accepts_the_manifests(words):
    if (validate := shutil.which("kubernetes-validate")) is None:
        pytest.skip("no kubernetes-validate here; pip install kubernetes-validate")
    files("kubernetes", *words)
    checked = subprocess.run(
        [validate, "--strict", *map(str, Path("launch/textcraft").glob("*.yaml"))], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stderr.count("passed") + checked.stdout.count("passed") == len(objects(*words))


@sizes
def test_bash_the_trainer_and_kubernetes_get_the_same_commands_which_they_accept(words):
    script = files("slurm", *words)["job.sbatch"]
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert checked.returncode == 0 and not checked.stderr, checked.stderr
    command = commands(script)[-1]
    assert command.endswith("echo --resume)") and "--config launch/textcraft/settings.yaml" in command
    config = settings()
    assert config.iterations == 18 and len(config.envs) == 2
    options = command.partition("$(")[0].replace("$HEAD", "there").replace("$JOB", "1").split()[3:]
    known = {text.split()[0] for text in TRAIN.options} | {"--config"}
    assert {option for option in options if option.startswith("--")} <= known
    there = {one.removeprefix("export PORT=$((PORT + SLURM_PROCID)); ") for one in commands(script)}
    containers = {pod["containers"][0]["command"][2] for pod in pods(*words)}
    assert {one.replace("/data/runs", f"{Path.cwd()}/runs") for one in containers} == there


def test_servers_take_their_environment_and_the_settings_name_them():
    words = ["--nodes", "2", "--servers", "3", "--evaluation.envs", "[{id: WebShop-v0, split: dev}]"]
    written = files("slurm", *words)
    served = [parsed(one.partition("; ")[2]) for one in commands(written["job.sbatch"])[:-1]]
    assert all(one.token_file is None and one.host == "0.0.0.0" for one in served)
    assert [one.environments for one in served] == [["TextCraft-v0"], ["WebShop-v0"]]
    config = settings()
    urls = [env.url for env in (*config.envs, *config.evaluation.envs)]
    folder = f"file://{Path.cwd()}/launch/textcraft"
    assert urls == [f"{folder}/textcraft.servers"] * 2 + [f"{folder}/webshop.servers"]
    assert all(f'> "$folder/{name}.servers"' in written["job.sbatch"] for name in ("textcraft", "webshop"))


def test_addresses_of_servers_are_those_of_the_nodes_that_slurm_puts_them_on():
    script = files("slurm", *SIZES["vLLM on nodes of its own"].split(), "--servers", "3")["job.sbatch"]
    lines = "\n".join(line for line in script.splitlines() if line.startswith(("for i", "PORT=")))
    nodes = "nodes=(a b c d); PORT=100; folder=launch/textcraft; "
    subprocess.run(["bash", "-c", nodes + lines], check=True)
    read = {name: Path(f"launch/textcraft/{name}.servers").read_text().split() for name in ("textcraft", "vllm")}
    assert read["textcraft"] == ["http://a:100", "http://b:101", "http://a:102"]
    assert read["vllm"] == [f"http://{'c' if i < 8 else 'd'}:{103 + i}" for i in range(12)]
    assert "#SBATCH --nodes=4\n" in script and "--relative=2 --ntasks-per-node=8" in script


@pytest.mark.parametrize("status, queued", [(143, True), (0, False), (1, False), (3, False)])
def test_a_job_whose_time_is_up_is_queued_again_where_the_run_was_stopped(status, queued):
    end = files("slurm")["job.sbatch"].partition("trainer=$!\n")[2]
    # The signal comes while the trainer runs, which then ends with the status.
    before = (
        "scancel() { touch cancelled; }; scontrol() { echo $*; }; SLURM_JOB_ID=7\n"
        f"{{ sleep 0.3; kill -USR1 $$; sleep 0.3; exit {status}; }} & trainer=$!\n"
    )
    ended = subprocess.run(["bash", "-c", before + end], capture_output=True, text=True, timeout=30)
    assert ended.returncode == status and Path("cancelled").exists(), ended.stderr
    assert ended.stdout == ("requeue 7\n" if queued else "")


@pytest.mark.parametrize("name", ["2025", "null", "1e3", "_", "A run, with a long name: of the 28th of November"])
def test_any_name_of_a_run_gives_names_that_kubernetes_takes(name):
    env = "[{id: WebShop-v0, split: dev}]"
    job = renamed(name, "--servers", "2", "--evaluation.envs", env)
    made = [one for text in manifests(job, "runs", "2025").values() for one in yaml.safe_load_all(text)]
    for one in made:
        most = 52 if one["kind"] == "StatefulSet" else 63
        assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", label := one["metadata"]["name"]) and len(label) <= most
    texts = [word for one in made for word in named_by(one)]
    assert len(texts) > 50 and all(isinstance(text, str) for text in texts), texts


def renamed(name: str, *words: str) -> ClusterJob:
    """The job of a run with a name."""
    config = replace(parse(["--config", CONFIG, *words[2:]]).config, name=name)
    return job_of(config, JobSizes(nodes=2, servers=int(words[1])), PurePosixPath("/data"), "dns://{}-{}:80".format)


def named_by(value: Any) -> Iterator[Any]:
    """All names, images, labels and values of variables in a manifest."""
    if isinstance(value, list):
        for one in value:
            yield from named_by(one)
    if isinstance(value, dict):
        yield from [value[key] for key in ("name", "image", "claimName", "serviceName", "value") if key in value]
        for key, one in value.items():
            yield from one.values() if key in ("labels", "matchLabels") else named_by(one)


def test_names_of_long_servers_are_cut_with_that_of_the_run():
    env = "[{id: PythonMath-v0, split: dev}]"
    assert [one.name for one in renamed("a", "--servers", "2", "--evaluation.envs", env).servers][1] == "pythonmath"
    cut = renamed("a" * 60, "--servers", "2", "--evaluation.envs", env).servers
    assert [one.name for one in cut] == ["textcraft", "pythonmat"]
    assert dns_label("2025") == "r-2025" and dns_label("...") == "run"


def test_only_pods_of_the_run_reach_its_pods():
    made = objects("--servers", "2")
    (policy,) = [one["spec"] for one in made if one["kind"] == "NetworkPolicy"]
    label = {"app.kubernetes.io/instance": "textcraft"}
    assert policy["podSelector"]["matchLabels"] == label and policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": label}}]}]
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in made if one["kind"] in ("Job", "StatefulSet")]
    assert len(labels) == 2 and all(label.items() <= one.items() for one in labels)


def test_a_server_of_several_gpus_takes_them_from_its_node():
    options = "{arguments: {tensor-parallel-size: 4, max-model-len: 4096}, memory: 0.8, python: there/bin/python}"
    words = [*SIZES["vLLM on nodes of its own"].split()[:-1], "2", "--rollout.engine_options", options]
    script = files("slurm", *words)["job.sbatch"]
    assert "#SBATCH --nodes=3\n" in script and "--ntasks-per-node=2" in script and "--gpus-per-task=4" in script
    assert "exec there/bin/python -m vllm.entrypoints.launchers.api_server.entry" in script
    assert "--gpu-memory-utilization 0.8 --tensor-parallel-size 4" in script and "--max-model-len 4096" in script
    config = settings()
    assert config.rollout.engine_options.keys() == {"urls", "weights_folder"}


def test_the_trainers_processes_have_the_gpus_that_vllm_leaves():
    words = SIZES["vLLM on the nodes that train"].split()
    script = files("slurm", *words)["job.sbatch"]
    assert "--processes 6 " in script and "--exact --gpus-per-node=6" in script and "#SBATCH --nodes=2\n" in script
    (trainer,) = of_kind("Job", *words)
    assert trainer["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 6}


def test_a_dry_run_prints_the_files_and_writes_none(capsys):
    assert main(["--slurm", "--config", CONFIG, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "# launch/textcraft/settings.yaml\nname: textcraft\n" in said and "#SBATCH --nodes=1\n" in said
    assert not Path("launch").exists()


@pytest.mark.parametrize(
    "words, said",
    [
        ("", "one of --slurm, --kubernetes and --local"),
        ("--slurm --kubernetes", "one of --slurm, --kubernetes and --local"),
        ("--slurm 'yes please'", "--slurm yes please: it takes no value"),
        ("--slurm --nodes 0", "--nodes 0: it must be a whole number of at least 1"),
        ("--slurm --image mine:1", "only --kubernetes takes an image"),
        ("--local 2 --nodes 2", "on this machine alone"),
        ("--local 2 --processes 4", "--local says how many"),
        ("--local 2 --gpus-per-node 8", "--gpus-per-node 8: --local says how many"),
        ("--slurm --gpus-per-node 8 --processes 4", "--gpus-per-node says how many"),
        ("--slurm --vllm 2", "--vllm 2: rollout.engine is hf, which asks no vLLM server"),
        ("--slurm --vllm 2 --vllm-on both", "--vllm-on both: it is own or shared"),
        (
            "--slurm --vllm 2 --rollout.engine vllm --rollout.engine_options.urls http://a:8000",
            "rollout.engine_options.urls names servers that run",
        ),
        ("--slurm --vllm 2 --rollout.engine vllm --rollout.engine_options.place process", "place is process"),
        ("--slurm --rollout.engine vllm --gpus-per-node 2 --vllm 2 --vllm-on shared", "leaves GPUs that train"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(words, said, capsys):
    assert main(["--config", CONFIG, *shlex.split(words)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1, error


@sizes
def test_pods_have_no_rights_are_bounded_and_write_to_the_volume_alone(words):
    for pod in pods(*words):
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
        assert not pod["automountServiceAccountToken"] and not pod["enableServiceLinks"]
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip
            assert container["image"] == f"envsuite-trainer:{__version__}"
            variables = {one["name"]: one for one in container["env"]}
            assert variables[TOKEN_VARIABLE]["valueFrom"]["secretKeyRef"] == {"name": "textcraft", "key": "token"}
            assert container["envFrom"] == [{"secretRef": {"name": "textcraft-env", "optional": True}}]
        (container,) = pod["containers"]
        resources = container["resources"]
        assert {"cpu", "memory"} <= {*resources.get("limits", {}), *resources.get("requests", {})}
        shared = next(one["emptyDir"] for one in pod["volumes"] if one["name"] == "shm")
        assert shared["medium"] == "Memory"


def test_servers_are_asked_without_a_token_and_given_the_time_that_they_take_to_end():
    (role,) = of_kind("StatefulSet", "--servers", "2")
    pod = role["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    probes = {server[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert probes == {"/healthz", "/readyz"}
    before = int(server["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= before + DRAIN_SECONDS + 15
    assert parsed(server["command"][2]).environments == ["TextCraft-v0"]
    assert server["ports"][0]["containerPort"] == parsed(server["command"][2]).port


@sizes
def test_services_lead_to_their_pods_and_names_of_pods_are_those_that_are_asked(words):
    made = objects(*words)
    roles = {one["metadata"]["name"]: one["spec"] for one in made if one["kind"] in ("Job", "StatefulSet")}
    services = {one["metadata"]["name"]: one["spec"] for one in made if one["kind"] == "Service"}
    for name, spec in services.items():
        assert spec["selector"] == roles[name]["template"]["metadata"]["labels"] and spec["clusterIP"] == "None"
        assert roles[name].get("serviceName", roles[name]["template"]["spec"].get("subdomain")) == name
    trainer = roles["textcraft-trainer"]
    assert trainer["completions"] == trainer["parallelism"] == int(words[words.index("--nodes") + 1])
    variables = {one["name"]: one.get("value") for one in trainer["template"]["spec"]["containers"][0]["env"]}
    if trainer["completions"] > 1:
        assert variables["HEAD"] == "textcraft-trainer-0.textcraft-trainer" and "textcraft-trainer" in services
    waits = " ".join(one["command"][2] for one in trainer["template"]["spec"].get("initContainers", []))
    asked = re.findall(r"http://([\w.-]+):8080/", waits)
    assert sorted(asked) == sorted(name for name, spec in roles.items() if "replicas" in spec)
    assert services.keys() >= {*asked}


def test_a_run_that_an_alarm_stopped_or_with_wrong_settings_is_not_started_again():
    (trainer,) = of_kind("Job")
    rule = trainer["spec"]["podFailurePolicy"]["rules"][0]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [2, 3])
    assert trainer["spec"]["template"]["spec"]["restartPolicy"] == "Never"
