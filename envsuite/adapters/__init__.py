"""Environments of other packages, as they are: ``reasoning_gym/chain_sum``, ``textarena/Wordle-v0`` and the like.

An id is the name of the package and its own name of the environment. Each module of this folder makes classes of
:class:`~envsuite.core.ToolEnv` of them, one for each name: tasks are seeds, tools are made of what the package takes.
"""
