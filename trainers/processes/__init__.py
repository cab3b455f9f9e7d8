"""The processes of a run: what they tell each other, their signs of life, and the machine they compute on."""
