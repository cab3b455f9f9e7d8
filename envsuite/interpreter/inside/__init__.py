"""The part that runs in the sandbox: standard library only, and nothing of envsuite outside this folder."""
