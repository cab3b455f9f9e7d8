"""Registration of the environment: what stands where, imported when it is asked for."""

from envsuite.core.registration import EnvSpec, Profile

SPEC = EnvSpec(
    "WebShop-v0",
    "envsuite.webshop.env:WebShop",
    max_episode_steps=15,
    extra="webshop",
    players={"expert": "envsuite.webshop.expert:WebShopExpert", "lexical": "envsuite.webshop.expert:WebShopLexical"},
    milestones="envsuite.webshop.milestones:WebShopMilestones",
    downloads="envsuite.webshop.downloads:DATA_SETS",
    page="envsuite.webshop.page.command",
    practice="envsuite.webshop.practice:practice",
    builds={"webshop": "envsuite.webshop.build_cli"},
    profile=Profile(commands="click", breaks=" [SEP] ", about="search WORDS, or the text of a button; Tab completes"),
)
