"""Checks of ``test_vllm_contract.py``, run by an interpreter that has vLLM: ``python vllm_contract.py < FACTS``.

Reads the trainer's source for every name of vLLM that it imports, every attribute of vLLM's objects that it reads, and
every call of them, and looks for each in the installed vLLM. Prints what is missing of each kind as one line of JSON.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

SOURCES = Path(__file__).parents[2] / "trainers/rollout/vllm"
LORA = "self.model_runner.lora_manager"
OWNERS: dict[str, dict[str, tuple[str, ...]]] = {
    "inside.py": {
        "LLMEngine": ("vllm.v1.engine.llm_engine:LLMEngine",),
        "EngineArgs": ("vllm.engine.arg_utils:EngineArgs",),
        "RequestOutputKind": ("vllm.sampling_params:RequestOutputKind",),
        "self._engine": ("vllm.v1.engine.llm_engine:LLMEngine",),
        "self._engine.model_config": ("vllm.config:ModelConfig",),
        "client": ("vllm.v1.engine.core_client:InprocClient",),
        "client._finalizer": ("weakref:finalize",),
        "client.engine_core": ("vllm.v1.engine.core:EngineCore",),
        "client.engine_core.model_executor": ("vllm.v1.executor.abstract:Executor",),
        "client.engine_core.scheduler": ("vllm.v1.core.sched.scheduler:Scheduler",),
        "output": ("vllm.outputs:RequestOutput",),
        "new": ("vllm.outputs:CompletionOutput",),
        "top[token]": ("vllm.logprobs:Logprob",),
        "ExecutorWithExternalLauncher": ("vllm.v1.executor.uniproc_executor:ExecutorWithExternalLauncher",),
        "UniProcExecutor": ("vllm.v1.executor.uniproc_executor:UniProcExecutor",),
    },
    "server/envsuite_worker.py": {
        "self": ("vllm.v1.worker.gpu_worker:Worker", "vllm.v1.worker.cpu_worker:CPUWorker"),
        "self.model_runner": (
            "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
            "vllm.v1.worker.gpu.model_runner:GPUModelRunner",
        ),
        LORA: ("vllm.lora.worker_manager:LRUCacheWorkerLoRAManager",),
        f"{LORA}._adapter_manager": ("vllm.lora.model_manager:LRUCacheLoRAModelManager",),
        "self.model_config": ("vllm.config:ModelConfig",),
        "self.parallel_config": ("vllm.config:ParallelConfig",),
        "self.scheduler_config": ("vllm.config:SchedulerConfig",),
        "self.vllm_config": ("vllm.config:VllmConfig",),
        "self.vllm_config.lora_config": ("vllm.config:LoRAConfig",),
        "current_platform": ("vllm.platforms.interface:Platform",),
        "linear_layers": ("vllm.model_executor.layers.utils:",),
    },
}
"""By file: what expressions of it are, as the classes of vLLM."""
OWN = "envsuite_"


def loaded(place: str) -> Any:
    """The class or function at ``module:name``; the module itself without a name."""
    module, _, name = place.partition(":")
    found = importlib.import_module(module)
    return getattr(found, name) if name else found


def moved(name: str, package: str) -> str:
    """The module of a name, wherever in a package this version has it; it is named by tests alone."""
    (folder,) = importlib.import_module(package).__path__
    (file,) = Path(folder).rglob(f"{name}.py")
    return ".".join([package, *file.relative_to(folder).with_suffix("").parts])


def has(owner: Any, name: str) -> bool:
    """Whether an object of a class (or a module) has the attribute, set in a method or declared."""
    if not inspect.isclass(owner):
        return hasattr(owner, name)
    return hasattr(owner, name) or any(
        name in vars(base).get("__annotations__", {}) or f"self.{name}" in source(base) for base in owner.__mro__
    )


def source(owner: Any) -> str:
    try:
        return inspect.getsource(owner)
    except (TypeError, OSError):  # object, and what is written in C
        return ""


def binds(owner: Any, call: ast.Call, name: str) -> str:
    """What is wrong with the arguments of a call; empty where nothing is."""
    function = inspect.getattr_static(owner, name, None)
    if function is None:
        return ""
    bound = inspect.isclass(owner) and not isinstance(function, classmethod | staticmethod)
    positional = [None] * (bound + sum(not isinstance(argument, ast.Starred) for argument in call.args))
    named = {keyword.arg: None for keyword in call.keywords if keyword.arg}
    try:
        inspect.signature(getattr(owner, name)).bind(*positional, **named)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def attributes() -> Iterator[str]:
    """What the trainer reads or calls, and the installed vLLM does not have."""
    for file, owners in OWNERS.items():
        tree, seen = ast.parse((SOURCES / file).read_text()), set()
        for node in ast.walk(tree):
            target = node.func if isinstance(node, ast.Call) else node
            if not isinstance(target, ast.Attribute) or (told := ast.unparse(target.value)) not in owners:
                continue
            seen.add(told)
            if target.attr.startswith(OWN):
                continue
            for place in owners[told]:
                owner = loaded(place)
                if not has(owner, target.attr):
                    yield f"{file}:{node.lineno}: {place} has no {target.attr}"
                elif isinstance(node, ast.Call) and (wrong := binds(owner, node, target.attr)):
                    yield f"{file}:{node.lineno}: {place}.{target.attr}: {wrong}"
        yield from (f"{file} has no {told}: take it out of OWNERS" for told in owners.keys() - seen)


def imports() -> Iterator[str]:
    """What the trainer imports of vLLM, and is not there."""
    for file in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for name in names:
                whole = f"{module}:{name}" if module else f"{name}:"
                if whole.split(".")[0].split(":")[0] != "vllm":
                    continue
                try:
                    loaded(whole)
                except (ImportError, AttributeError) as error:
                    yield f"{file.name}:{node.lineno}: {error}"


def arguments(words: list[str]) -> Iterator[str]:
    """Arguments on the command line that vLLM's server does not take."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    make_arg_parser = loaded(f"{moved('cli_args', 'vllm.entrypoints')}:make_arg_parser")

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]
        def error(self, message: str) -> Any:
            raise ValueError(message)

    try:
        make_arg_parser(Parser()).parse_args(words)
    except ValueError as error:
        yield str(error)


def sampling(settings: dict[str, Any]) -> Iterator[str]:
    """Settings of a request that vLLM does not take."""
    from vllm import SamplingParams

    try:
        SamplingParams(**settings)
    except (TypeError, ValueError) as error:
        yield str(error)


def routes(calls: list[str]) -> Iterator[str]:
    """Calls of the server (path?query) that it does not know."""
    import vllm.entrypoints

    known: dict[str, set[str]] = {}
    for file in Path(vllm.entrypoints.__path__[0]).rglob("api_router.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.AsyncFunctionDef):
                made = [call for decorator in node.decorator_list for call in ast.walk(decorator)]
                paths = [call.args[0].value for call in made if isinstance(call, ast.Call) and _named(call)]
                asked = [call.args[0].value for call in ast.walk(node) if isinstance(call, ast.Call) and _named(call)]
                for path in paths:
                    known.setdefault(path, set()).update({argument.arg for argument in node.args.args}, asked)
    for call in calls:
        path, _, query = call.partition("?")
        if path not in known:
            yield f"no route {path}"
        for name in (pair.partition("=")[0] for pair in query.split("&") if pair):
            if name not in known.get(path, {name}):
                yield f"{path} takes no {name}"


def _named(call: ast.Call) -> bool:
    """Whether the first argument of a call is a text."""
    return bool(call.args) and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)


def others(ranks: list[int], variables: list[str]) -> Iterator[str]:
    """Constants that differ."""
    import vllm.envs
    from vllm.config.lora import MaxLoRARanks

    if [*get_args(MaxLoRARanks)] != ranks:
        yield f"ranks of adapters are {get_args(MaxLoRARanks)}"
    yield from (f"no variable {name}" for name in variables if name not in vllm.envs.environment_variables)


if __name__ == "__main__":
    facts = json.load(sys.stdin)
    found = {
        "imports": [*imports()],
        "attributes": [*attributes()],
        "arguments": [*arguments(facts["arguments"])],
        "sampling": [*sampling(facts["sampling"])],
        "routes": [*routes(facts["routes"])],
        "constants": [*others(facts["ranks"], facts["variables"])],
    }
    print(json.dumps(found))
