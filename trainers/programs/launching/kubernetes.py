"""A job as manifests of Kubernetes."""

from __future__ import annotations

from typing import Any

import yaml

from envsuite.remote.protocol import TOKEN_VARIABLE
from trainers.programs.launching.roles import KEY_VARIABLE, PAUSED, READY, VLLM, Job, Servers, dns_label

FILE, VOLUME = "job.yaml", "volume.yaml"
ROOT = "/data"
"""Where the volume is mounted; the working folder of all roles."""
PORT = 8080
_GPU = "nvidia.com/gpu"
_USER = 10001  # of docker/Dockerfile
_FINAL = [2, PAUSED]
_HEAD = """# The run {run}, by: envsuite launch --kubernetes
#   kubectl create secret generic {name} --from-literal=token=$(openssl rand -hex 32)
#   kubectl apply -f {folder}/{volume} -f {folder}/{file}
#   kubectl logs -f job/{name}-trainer    # of each process: {root}/{output}/run.log, run.rank1.log, …
#   kubectl delete -f {folder}/{file}     # ends the servers, which run on after the run; the volume stays
"""


def manifests(job: Job, output: str, image: str) -> dict[str, str]:
    """Returns manifests as YAML, by the names of their files.

    Args:
        job: The roles.
        output: The run's folder, below the volume.
        image: Image of all roles.
    """
    name = dns_label(job.name)
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "100Gi"}}}
    volume = _object("v1", "PersistentVolumeClaim", name, name, spec=claim)
    documents = [_object("v1", "ConfigMap", name, name, data={"settings.yaml": _Text(job.settings)})]
    for servers in job.servers:
        documents += [_service(name, servers.name, "http", PORT), _stateful_set(job, name, servers, image)]
    if job.nodes > 1:
        documents.append(_service(name, "trainer"))
    documents.append(_trainer(job, name, image))
    head = _HEAD.format(run=job.name, name=name, folder=job.folder, file=FILE, volume=VOLUME, root=ROOT, output=output)
    return {FILE: head + "---\n".join(map(_written, documents)), VOLUME: _written(volume)}


def _object(api: str, kind: str, run: str, name: str, **rest: Any) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": _labels(run)}, **rest}


def _labels(run: str, role: str = "") -> dict[str, str]:
    labels = {"app.kubernetes.io/instance": run}
    return {**labels, "app.kubernetes.io/component": role} if role else labels


def _service(run: str, role: str, port: str = "", number: int = 0) -> dict[str, Any]:
    """Gives each pod of a role a name; one without a port also before the pod is ready: there the trainers meet."""
    spec: dict[str, Any] = {"clusterIP": "None", "selector": _labels(run, role)}
    spec |= {"ports": [{"name": port, "port": number}]} if port else {"publishNotReadyAddresses": True}
    return _object("v1", "Service", run, f"{run}-{role}", spec=spec)


def _stateful_set(job: Job, run: str, servers: Servers, image: str) -> dict[str, Any]:
    container = _container(job, run, "server", servers.command, image, HOST="0.0.0.0", PORT=str(PORT))
    alive = {"httpGet": {"path": servers.alive, "port": PORT}}
    limits: dict[str, Any] = {"cpu": servers.cores, "memory": f"{64 * servers.gpus or servers.cores}Gi"}
    container |= {
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {"limits": limits | ({_GPU: servers.gpus} if servers.gpus else {})},
        "startupProbe": {**alive, "periodSeconds": 5, "failureThreshold": 360},
        "livenessProbe": {**alive, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "readinessProbe": {"httpGet": {"path": servers.ready, "port": PORT}, "periodSeconds": 5, "timeoutSeconds": 5},
        # SIGTERM comes when the cluster's names no longer lead here.
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", "5"]}}},
    }
    # More than preStop, the 20 s that requests under way have after SIGTERM, and the end itself.
    pod = _pod(run, servers.name, container, terminationGracePeriodSeconds=50)
    spec = {
        "serviceName": f"{run}-{servers.name}",
        "replicas": servers.count,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": _labels(run, servers.name)},
        "template": pod,
    }
    return _object("apps/v1", "StatefulSet", run, f"{run}-{servers.name}", spec=spec)


def _trainer(job: Job, run: str, image: str) -> dict[str, Any]:
    meeting = {"HEAD": f"{run}-trainer-0.{run}-trainer", "JOB": run} if job.nodes > 1 else {}
    container = _container(job, run, "trainer", job.trainer, image, **meeting)
    memory = f"{64 * job.gpus or 4 * job.processes}Gi"
    container["resources"] = {"requests": {"cpu": 8 * job.gpus or job.processes, "memory": memory}}
    if job.gpus:
        container["resources"]["limits"] = {_GPU: job.gpus}
    asked = " ".join(
        f"http://{run}-{servers.name}-{number}.{run}-{servers.name}:{PORT}{servers.ready}"
        for servers in job.servers
        for number in range(servers.count)
    )
    waiting = _container(job, run, "wait", f"exec python -m {READY} {asked}", image)
    rest: dict[str, Any] = {"initContainers": [waiting]} if asked else {}
    rest |= {"subdomain": f"{run}-trainer"} if job.nodes > 1 else {}
    rules = [
        {"action": "FailJob", "onExitCodes": {"containerName": "trainer", "operator": "In", "values": _FINAL}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
    ]
    spec = {
        "completionMode": "Indexed",
        "completions": job.nodes,
        "parallelism": job.nodes,
        "backoffLimit": job.nodes * job.restarts,
        "podFailurePolicy": {"rules": rules},
        "template": _pod(run, "trainer", container, restartPolicy="Never", terminationGracePeriodSeconds=300, **rest),
    }
    return _object("batch/v1", "Job", run, f"{run}-trainer", spec=spec)


def _container(job: Job, run: str, name: str, command: str, image: str, **variables: str) -> dict[str, Any]:
    token = {"valueFrom": {"secretKeyRef": {"name": run, "key": "token"}}}
    keys = [TOKEN_VARIABLE, KEY_VARIABLE] if any(servers.name == VLLM for servers in job.servers) else [TOKEN_VARIABLE]
    variables = {"ENVSUITE_DATA": ROOT, "HF_HOME": f"{ROOT}/huggingface", **variables}
    return {
        "name": name,
        "image": image,
        "command": ["bash", "-c", command],
        "workingDir": ROOT,
        "env": [{"name": key, **token} for key in keys] + [{"name": k, "value": v} for k, v in variables.items()],
        "securityContext": {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "data", "mountPath": ROOT},
            {"name": "settings", "mountPath": f"{ROOT}/{job.folder}"},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }  # fmt: skip


def _pod(run: str, role: str, container: dict[str, Any], **rest: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": _USER, "runAsGroup": _USER, "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **rest,
        "containers": [container],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": run}},
            {"name": "settings", "configMap": {"name": run}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "8Gi"}},
            # A container's own 64 MB are too few for what processes of one machine tell each other.
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
        ],
    }  # fmt: skip
    return {"metadata": {"labels": _labels(run, role)}, "spec": spec}


def _written(document: dict[str, Any]) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=1000)


class _Text(str):
    """Text of several lines, written as it is."""


class _Dumper(yaml.SafeDumper):
    """Writes no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """Equal parts are written out each time."""
        return True


_Dumper.add_representer(_Text, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|"))
