"""A run with a prompt file: it is trained, keeps the file's text, and goes on with the same text only."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_runs import save_model, tokenizer, write_settings

from trainers.rollout.config import PromptConfig
from trainers.run.origin import differing, origin_of
from trainers.steps.parquet import read_episodes
from trainers.train import main


@pytest.mark.slow
def test_a_run_keeps_its_prompt_file_and_resumes_with_the_same_text_only(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save_model(tmp_path / "model")
    file = tmp_path / "mine.jinja"
    file.write_text("{{ current_step }} {{ observation }}\n")
    changes = {"prompt.template": str(file), "prompt.memory": "summary(1)", "evaluation.envs": [], "iterations": 1}
    config = str(write_settings(tmp_path, **changes))
    assert main(["--config", config]) == 0
    run = tmp_path / "runs" / "tiny"
    assert (run / "prompt.jinja").read_text() == file.read_text()
    for episode in read_episodes(run / "episodes" / "iteration-00001.parquet"):
        for number, step in enumerate(episode.steps, 1):
            assert tokenizer().decode(step.prompt_ids.tolist()).startswith(f"<|user|> {number} ")
    file.write_text("{{ observation }}\n")
    capfd.readouterr()
    assert main(["--config", config, "--resume"]) == 1
    said = capfd.readouterr().err
    assert "was written with prompt.template = 'a file with SHA-256 " in said and "set it back" in said
    kept = tmp_path / "elsewhere.jinja"
    kept.write_bytes((run / "prompt.jinja").read_bytes())
    assert main(["--config", config, "--resume", "--iterations", "2", "--prompt.template", str(kept)]) == 0
    capfd.readouterr()
    origin = origin_of(str(run / "checkpoints" / "iteration-00002"))
    assert origin is not None
    assert differing(origin, PromptConfig(**{**origin.prompt, "template": str(kept)})) is None
    assert "prompt.template was 'a file with SHA-256 " in str(differing(origin, PromptConfig(template=str(file))))
    more = ["--resume", "--prompt.template", "null"]
    assert main(["--config", config, *more]) == 1
    assert "this run has None" in capfd.readouterr().err
