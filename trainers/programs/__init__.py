"""Programs of the command ``envsuite`` that need the trainer; :mod:`trainers.commands` lists them."""
