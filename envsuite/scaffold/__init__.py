"""``envsuite new``: the files of an environment of one's own, and of an agent that learns in it."""
