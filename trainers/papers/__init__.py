"""The settings that papers published, as data: ``--config papers/PAPER/…`` and ``envsuite papers`` read them."""
