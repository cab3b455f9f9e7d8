from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from envsuite.serving.server import EnvServer


@pytest.mark.slow
def test_a_run_on_two_servers_is_the_run_in_process_to_the_last_bit(
    start: Callable[..., EnvServer], tmp_path: Path
) -> None:
    from tiny_runs import save_model, train, weights, without_times, write_settings

    save_model(tmp_path / "model")
    urls = [start().url, start().url]
    records, bits = [], []
    for name, url in (("here", "null"), ("there", f"[{urls[0]}, {urls[1]}]")):
        config = write_settings(tmp_path, name=name)
        run = train("--config", str(config), f"--envs={_envs(url)}", timeout=1200)
        assert run.returncode == 0, run.stderr
        records.append(without_times(tmp_path / "runs" / name))
        last = sorted((tmp_path / "runs" / name / "checkpoints").glob("iteration-*"))[-1]
        bits.append(weights(last))
    assert records[0] == records[1] and bits[0] == bits[1]
    assert len(records[0]) == 7


def _envs(url: str) -> str:
    from tiny_runs import BOOK

    kwargs = ", ".join(f"{name}: {value}" for name, value in BOOK.items())
    return f"[{{id: TextCraft-v0, kwargs: {{{kwargs}}}, max_episode_steps: 3, url: {url}}}]"
