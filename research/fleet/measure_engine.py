"""Speed of the ``hf`` engine on this machine: ``research.fleet.measure`` uses it."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from envsuite.playing.engine import Request, Sampling
from research.fleet.engine import Engine
from trainers.planning.plan import EngineSpeed
from trainers.policy.loading import load_model
from trainers.rollout.hf_engine import HFEngine
from trainers.run.config import TrainConfig

SEQUENCES, CONTEXTS, TOKENS = (1, 8, 32, 64), (32, 128, 384), 24
SESSIONS, TURNS, NEW = 24, 8, 16
"""Sessions, requests of each, and new tokens of each request's prompt, where the cost of a request is measured."""


def measured_engine(config: TrainConfig) -> EngineSpeed:
    """Fits an engine's speed to CPU seconds over numbers of sequences and lengths of prompts, least relative error."""
    engine = HFEngine(load_model(config.model).train(False), max_batch=max(SEQUENCES))
    rng = np.random.default_rng(0)
    vocabulary = engine.model.config.get_text_config(decoder=True).vocab_size
    decode, prefill = [], []
    _timed(engine, rng.integers(vocabulary, size=(4, 16)), 4)
    for _, count, length in product(range(2), SEQUENCES, CONTEXTS):
        first, prompts = rng.integers(vocabulary, size=(2, count, length))
        started = _timed(engine, first, 1)
        whole = _timed(engine, prompts, 1 + TOKENS)
        decode.append((1.0, count, count * (length + TOKENS / 2), (whole - started) / TOKENS))
        prefill.append((count, count * length, started))
    base, each, context = _fitted(np.array(decode))
    _, token = _fitted(np.array(prefill))
    speed = EngineSpeed(0.0, base, each, context, 0.0, token)
    return replace(speed, request=_request(engine, speed, rng, vocabulary))


def _request(engine: HFEngine, speed: EngineSpeed, rng: np.random.Generator, vocabulary: int) -> float:
    """Seconds of a request that ``speed`` leaves out: short prompts join while others decode, as in episodes."""
    lengths = rng.integers(4, 24, size=(SESSIONS, TURNS))
    model = Engine(speed, SESSIONS)
    for session in range(SESSIONS):
        model.join(session, float(lengths[session, 0]), NEW, NEW)
    turn = [0] * SESSIONS
    while model.running:
        model.advance(model.next_end(), "environment")
        while (ended := model.ended()) is not None:
            turn[ended] += 1
            model.leave(0.0)
            if turn[ended] < TURNS:
                model.join(ended, float(lengths[ended, turn[ended]]), NEW, float(lengths[ended].mean()) + NEW)
    began, turn, texts = time.process_time(), [0] * SESSIONS, rng.integers(vocabulary, size=(SESSIONS, NEW)).tolist()

    def ask(session: int) -> None:
        sampling = Sampling(1.0, 1.0, 0, int(lengths[session, turn[session]]), ())
        engine.submit(
            [Request(session, np.array(texts[session], np.int32), sampling, session=session, seed=turn[session])]
        )

    for session in range(SESSIONS):
        ask(session)
    while engine.pending:
        for completion in engine.poll():
            session = completion.request_id
            turn[session] += 1
            texts[session] += [*completion.token_ids, *rng.integers(vocabulary, size=NEW).tolist()]
            if turn[session] < TURNS:
                ask(session)
    return max(0.0, (time.process_time() - began - model.time) / (SESSIONS * TURNS))


def _timed(engine: HFEngine, prompts: NDArray[np.int64], tokens: int) -> float:
    """CPU seconds to answer all prompts with so many tokens each."""
    began = time.process_time()
    sampling = Sampling(1.0, 1.0, 0, tokens, ())
    engine.submit([Request(n, ids, sampling, session=n, seed=n) for n, ids in enumerate(prompts.astype(np.int32))])
    while engine.pending:
        engine.poll()
    for number in range(len(prompts)):
        engine.release(number)
    return time.process_time() - began


def _fitted(rows: NDArray[np.float64]) -> list[float]:
    """Coefficients, none below 0, of the columns but the last, which they approximate; errors are relative."""
    scaled = rows[:, :-1] / rows[:, -1:]
    active = list(range(scaled.shape[1]))
    while True:
        found = np.linalg.lstsq(scaled[:, active], np.ones(len(rows)), rcond=None)[0]
        if found.min() >= 0 or len(active) == 1:
            break
        active.pop(int(found.argmin()))
    out = [0.0] * scaled.shape[1]
    for column, value in zip(active, found, strict=True):
        out[column] = max(0.0, float(value))
    return out
