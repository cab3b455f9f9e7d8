"""Registration of the environments: what stands where, imported when it is asked for."""

from envsuite.core.registration import EnvSpec, Profile


def _spec(name: str, module: str, steps: int, profile: Profile) -> EnvSpec:
    place = f"envsuite.classics.{module}:{name}"
    return EnvSpec(
        f"{name}-v0", place, max_episode_steps=steps, inline=True, players={"expert": f"{place}Expert"}, profile=profile
    )


_ARROWS = Profile(
    keys={"up": "up", "down": "down", "left": "left", "right": "right"}, about="the arrow keys, or a direction"
)
WORDLE = _spec("Wordle", "wordle", 12, Profile(about="a word of five letters"))
COUNTDOWN = _spec("Countdown", "countdown", 10, Profile(commands="calculate", about="an operation such as 75 - 4"))
FROZENLAKE = _spec("TextFrozenLake", "frozenlake", 100, _ARROWS)
GAME2048 = _spec("Game2048", "game2048", 200, _ARROWS)
RUSHHOUR = _spec("RushHour", "rushhour", 25, Profile(commands="drive", about="a move such as B down 2"))
