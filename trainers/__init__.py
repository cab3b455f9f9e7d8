"""Reinforcement learning of language agents: rollouts, credit assignment, training."""
