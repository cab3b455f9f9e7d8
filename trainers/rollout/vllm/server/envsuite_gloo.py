"""An engine of vLLM's weight transfer over sockets: ``--weight-transfer-config '{"backend": "envsuite_gloo"}'``."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

from envsuite_stream import address_towards, join_group, receive
from torch.distributed import ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload.inplace import reload_weights


@dataclass
class GlooMeeting(WeightTransferInitInfo):  # type: ignore[misc]
    """Where a server's workers and the trainer meet."""

    address: str
    """The trainer's."""
    port: int
    size: int
    """Number of members; the trainer is the first."""
    seconds: float
    """How long an operation may take."""


@dataclass
class GlooUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """An update; all that there is to know comes through the sockets."""


class GlooTransfer(WeightTransferEngine[GlooMeeting, GlooUpdate]):  # type: ignore[misc]
    """Loads weights as they come.

    An error is kept, not raised, as in :meth:`~envsuite_worker.TakesWeights.envsuite_take`: the trainer asks for it.
    """

    init_info_cls, update_info_cls = GlooMeeting, GlooUpdate
    failure: str | None = "it has had no update"
    """Why the last update has not come; ``None`` if it has."""
    _group: ProcessGroupGloo | None = None

    def init_transfer_engine(self, init_info: GlooMeeting) -> None:
        """Joins the trainer."""
        place = self.parallel_config
        rank = 1 + place.data_parallel_index * place.world_size + place.rank
        most = datetime.timedelta(seconds=init_info.seconds)
        store = TCPStore(init_info.address, init_info.port, timeout=most, wait_for_workers=False)
        own = address_towards(init_info.address, init_info.port, init_info.seconds)
        self._group = join_group(store, rank, init_info.size, own, init_info.seconds)

    def start_weight_update(self) -> None:
        """Forgets the last update."""
        self.failure = "its update has not come"

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receives all weights; without the synchronisation of vLLM's own, which wants a GPU."""
        try:
            self.receive_weights(self.parse_update_info(update_info))
        except Exception as error:  # of any class: one that is raised ends the server
            self.shutdown()  # so that the trainer waits no longer
            self.failure = f"{type(error).__name__}: {error}"

    def receive_weights(self, update_info: GlooUpdate) -> None:
        """Receives and loads them."""
        if self._group is None:
            raise RuntimeError("it has not joined the trainer since it was started")
        reload_weights(self.vllm_config, self.model, receive(self._group), None, is_checkpoint_format=True)
        self.failure = None

    def finish_weight_update(self) -> None:
        """Nothing: they are loaded."""

    def shutdown(self) -> None:
        """Leaves the trainer."""
        self._group = None
