"""Estimators measured against exact advantages, without a language model.

Worlds small enough that Q and V of any policy can be computed exactly (:mod:`~trainers.lab.worlds`, and TextCraft
itself in :mod:`~trainers.lab.craft`) are played by a tabular policy; the step tables go through the same estimators as
those of a training run, and what comes out is held against the truth. ``python -m trainers.lab`` runs it all.
"""
