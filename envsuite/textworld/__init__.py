"""``TextWorld-v0``: the games that the package ``textworld`` makes, played by its own rules, without Inform 7."""
