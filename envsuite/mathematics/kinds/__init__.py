"""The families of generated problems, by kind: one file each."""

from envsuite.mathematics.kinds.arithmetic import ARITHMETIC
from envsuite.mathematics.kinds.combinatorics import COMBINATORICS
from envsuite.mathematics.kinds.lattice import LATTICE
from envsuite.mathematics.kinds.number_theory import NUMBER_THEORY
from envsuite.mathematics.kinds.sequences import SEQUENCES

FAMILIES = (*ARITHMETIC, *NUMBER_THEORY, *COMBINATORICS, *LATTICE, *SEQUENCES)
"""Every family."""

__all__ = ["FAMILIES"]
