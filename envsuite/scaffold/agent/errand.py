"""errand: an agent with a loop of its own. It asks a model, and types what the model says into the environment."""


def play(task, client):
    """Play one episode: ``client.chat`` asks the model, ``client.env.type`` acts and returns what the agent reads."""
    messages = [{"role": "user", "content": task.text}]
    while not client.env.done:
        answer = client.chat(messages)
        command = answer["content"].partition("<action>")[2].partition("</action>")[0]
        messages += [answer, {"role": "user", "content": client.env.type(command)}]
