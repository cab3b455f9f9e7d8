"""The MCP server of docs/other-packages.md, evaluated as the page says."""

import re
import sys
from pathlib import Path

import gymnasium
import pytest
from third_party import files_of

import envsuite
from envsuite.cli import main
from envsuite.core.tools import ToolCall

pytest.importorskip("mcp", reason="needs the MCP SDK: pip install 'envsuite[bridges]'")


@pytest.mark.seconds
def test_the_server_of_the_page_is_played(root, tmp_path, monkeypatch):
    page = root / "docs/other-packages.md"
    monkeypatch.chdir(tmp_path)
    for name, text in files_of(page, "An MCP server").items():
        Path(name).write_text(text)
    (settings,) = re.findall(r"```json\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    Path("sums.json").write_text(settings.replace("python server.py", f"{sys.executable} server.py"))
    envsuite.register("mcp/sums")
    env = gymnasium.make("mcp/sums", split="train")
    env.reset(seed=0)
    assert env.step([ToolCall("add", {"a": 2, "b": 3})])[0]["text"] == "5"
    _, reward, done, _, info = env.step([ToolCall("answer", {"text": "5"})])
    assert (reward, done, info["success"]) == (1.0, True, True)
    env.close()
    words = ["eval", "run", "mcp/sums", "--policy", "random", "--split", "train", "--seeds", "2", "--out", "results"]
    assert main(words) == 0
    assert sum(len(file.read_text().splitlines()) for file in Path("results").glob("*.jsonl")) == 2
