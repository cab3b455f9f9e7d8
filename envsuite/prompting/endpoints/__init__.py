"""Endpoints that speak OpenAI's chat completions: requests that are repeated, answers that are read strictly."""

from envsuite.prompting.endpoints.options import EndpointOptions, cost_of
from envsuite.prompting.endpoints.reading import AnswerTokens, MalformedAnswer, Reply, read
from envsuite.prompting.endpoints.request import body_of

__all__ = ["AnswerTokens", "EndpointOptions", "MalformedAnswer", "Reply", "body_of", "cost_of", "read"]
