import re
import subprocess
import sys

import pytest

from docs.build import FENCE, MADE_BY, ROOT, pages, problems
from envsuite.core.registration import ENVIRONMENTS
from trainers.credit.estimators import ESTIMATORS


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_commands_of_a_page_lead_somewhere(page):
    assert not list(problems(page))


def test_broken_links_and_commands_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A heading\n[fine](#a-heading) [fine](https://example.org/x) [no](#other) [no](missing.md)\n"
        "```bash\nmake help\nmake nothing  # make this\npython -m envsuite.cli list\npython -m trainers.nothing\n"
        "python -m trainers.run.config --config configs/nothing.yaml\n```\n"
        "```python\n# make nothing [x](missing.md)\n```\n"
    )
    assert [problem.split(":")[0] for problem in problems(page)] == [
        "link to #other",
        "link to missing.md",
        "make nothing",
        "python -m trainers.nothing",
        "--config configs/nothing.yaml",
    ]


def test_generated_pages_are_named_by_their_own_command():
    for page in pages():
        for _, target in MADE_BY.findall(page.read_text(encoding="utf-8")):
            assert ROOT / target == page


def test_no_page_says_that_an_environment_or_a_method_is_missing_which_is_there():
    there = [*(env_id.partition("-v")[0] for env_id in ENVIRONMENTS), *ESTIMATORS]
    names = "|".join(sorted(re.sub(r"(?<=[a-z])(?=[A-Z])|_", "[ _-]?", name) for name in there))
    claim = re.compile(rf"\b({names})\b[^.;|]* (is|are) (not an?|no) (environment|method)s?\b[^|]* here", re.IGNORECASE)
    assert claim.search("academic paper search is not an environment here yet")
    found = [(page.name, match[0]) for page in pages() for match in claim.finditer(page.read_text(encoding="utf-8"))]
    assert not found


@pytest.mark.parametrize(
    "code",
    [body for language, body in FENCE.findall((ROOT / "README.md").read_text("utf-8")) if language == "python"],
    ids=lambda code: code.splitlines()[0],
)
def test_the_examples_of_the_readme_run_as_they_stand(code):
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout
