"""The chat templates of this package, which give tools to models whose own template has none."""

import pytest
from families import tokenizer_of

from envsuite.prompting.shipped import template_names


@pytest.mark.seconds
@pytest.mark.parametrize("name", template_names("chat_templates"))
def test_without_tools_a_conversation_looks_as_in_the_model_s_own_template(smol, name):
    assert name == "smollm2", "another model's template is compared with its own"
    talk = [{"role": role, "content": f"Text of the {role}."} for role in ("system", "user", "assistant", "user")]
    for messages in (talk, talk[1:]):
        for prompt in (True, False):
            ours, own = (
                one.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
                for one in (tokenizer_of(smol, name), smol)
            )
            assert ours == own
