"""Updates of vLLM inside this process: it reads the trainer's own tensors."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from trainers.policy.adapter import frozen_weights
from trainers.rollout.engine import EngineFailed
from trainers.rollout.vllm.host import Host
from trainers.rollout.vllm.inside import Inside
from trainers.rollout.vllm.transfer import rounded, write_adapter
from trainers.rollout.vllm.weights import Weights, WeightUpdate


class DirectUpdate(WeightUpdate[Inside]):
    """Hands the weights over one by one, without a copy of all of them; an adapter goes through a file."""

    def _prepare(self, weights: Weights, folder: Path) -> None:
        """Nothing: vLLM samples only while it is polled."""

    def _load(self, weights: Weights, folder: Path, version: int) -> None:
        (inside,) = self.hosts
        model, alone = self.setup.model, self.adapter_alone
        if not (alone and self.has_base):
            sent: dict[str, int] = {}
            given = frozen_weights(model) if alone else iter(weights)
            try:
                answers = inside.call("envsuite_take", rounded(given, self.torch_dtype, sent), str(version))
            finally:
                for _ in given:  # gathering a sharded weight is a matter of all processes
                    pass
            self._compare(inside, version, answers, sent)
        if alone:
            self._load_adapter(inside, folder.with_name(f"{folder.name}-{inside.process}"), folder.name, version)

    def _load_adapter(self, inside: Inside, folder: Path, name: str, version: int) -> None:
        """Hands the adapter over through ``folder``, this process's own."""
        try:
            folder.mkdir()
            sent = write_adapter(self.setup.model, folder, self.torch_dtype)
            inside.put_adapter(name, folder)
        except OSError as error:
            where = "rollout.engine_options.weights_folder"
            raise EngineFailed(f"{where}: the adapter cannot be written: {error}; name a folder with room") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._compare(inside, version, inside.call("envsuite_adapter", str(version)), sent)

    def _tell(self, work: Callable[[Host], object]) -> None:
        for inside in self.hosts:
            work(inside)

    def _clean(self, folder: Path) -> None:
        """Nothing is left."""
