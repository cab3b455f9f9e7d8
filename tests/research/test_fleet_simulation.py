from __future__ import annotations

from dataclasses import replace
from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research.fleet.cores import Cores
from research.fleet.draws import Draws
from research.fleet.engine import Engine
from research.fleet.model import EnvironmentSpeed, Failures, Fleet, Lognormal, UpdateSpeed, Workload
from research.fleet.outcome import Outcome
from research.fleet.simulation import Simulation
from research.fleet.sizing import WITHIN, sized
from trainers.planning.plan import EngineSpeed
from trainers.settings import ConfigError

ENGINE = EngineSpeed(start=0.0, base=0.01, each=0.0, context=0.0, products=0.0, prefill=0.0)
UPDATE = UpdateSpeed(token=0.0, fixed=1.0, sync=0.5)
STEADY = EnvironmentSpeed(step=Lognormal(0.05), reset=Lognormal(0.2), memory=1e5)
FLEET = Fleet(engines=1, slots=8, colocated=True, training_gpus=1)


def work(tasks: int = 1, size: int = 1, steps: float = 2, response: float = 10, **changed: object) -> Workload:
    made = Workload(tasks, size, Lognormal(steps), 50, 100.0, 0.0, Lognormal(response), 512)
    return replace(made, **changed)  # type: ignore[arg-type]


def varied(tasks: int = 4, size: int = 4, sigma: float = 0.5) -> Workload:
    return Workload(tasks, size, Lognormal(8, sigma), 30, 100.0, 0.0, Lognormal(40, sigma), 200)


def engines(n: int = 2) -> EngineSpeed:
    return EngineSpeed(0.0, 0.005, 0.0005, 1e-7, 0.0, 1e-5)


# -- exact times ------------------------------------------------------------------------------------------------------


def test_constant_latencies_give_the_times_that_one_adds_up_by_hand():
    fleet = replace(FLEET, network=0.02, request=0.01, client=0.03)
    outcome = Simulation(work(), STEADY, ENGINE, UPDATE, fleet).run(3)
    calls = 3 * (0.03 + 0.02 + 0.01)  # a reset and two steps: client, network, server
    responses = 2 * 10 * 0.01
    assert outcome.iteration == pytest.approx(0.2 + 2 * 0.05 + calls + responses + 1.0 + 0.5, rel=1e-9)
    assert outcome.generating == pytest.approx(responses / outcome.iteration, rel=1e-6)
    assert outcome.engines["environment"] == pytest.approx((0.3 + calls) / outcome.iteration, rel=1e-6)
    assert outcome.engines["update"] == pytest.approx(1.0 / outcome.iteration, rel=1e-6)
    assert outcome.engines["sync"] == pytest.approx(0.5 / outcome.iteration, rel=1e-6)


def test_an_environment_in_the_engine_s_process_interrupts_every_sequence():
    fleet = replace(FLEET, place="inline", client=0.03, client_blocks=True)
    outcome = Simulation(work(tasks=4), STEADY, ENGINE, UPDATE, fleet).run(2)
    aside = 4 * (3 * 0.03 + 0.2 + 2 * 0.05)  # four episodes, one after the other
    assert outcome.engines["rollout process"] * outcome.iteration == pytest.approx(aside, rel=1e-6)
    assert outcome.iteration > aside + 2 * 10 * 0.01 + 1.5 - 1e-9


def test_sequences_share_the_iterations_of_an_engine():
    engine = Engine(EngineSpeed(0.0, 0.01, 0.01, 0.0, 0.0, 0.001, request=0.2), slots=2)
    engine.join(0, 10, 100, 0.0)
    engine.join(1, 20, 0, 0.0)
    first = 0.1 + 2 * 0.2 + 10 * 0.03  # prefill and requests first, then both decode
    assert engine.next_end() == pytest.approx(first)
    engine.advance(first, "update")
    assert engine.ended() == 0 and engine.ended() is None
    assert engine.next_end() == pytest.approx(first + 10 * 0.02)
    assert engine.busy == pytest.approx(first) and engine.sequences == pytest.approx(2 * 0.3)


def test_an_iteration_takes_the_longest_of_start_reading_and_products():
    speed = EngineSpeed(start=0.004, base=0.001, each=0.0, context=1e-6, products=1e-4, prefill=0.0)
    assert speed.iteration(1, 100) == 0.004
    assert speed.iteration(10, 10_000) == pytest.approx(0.011)
    assert speed.iteration(1000, 10_000) == pytest.approx(0.1)


def test_one_core_without_latency_leaves_the_engine_the_only_limit():
    nothing = EnvironmentSpeed(Lognormal(0.0), Lognormal(0.0), 0.0)
    none = UpdateSpeed(0.0, 0.0, 0.0)
    outcome = Simulation(work(tasks=2, size=4), nothing, ENGINE, none, FLEET).run(4)
    assert outcome.generating == pytest.approx(1.0, abs=1e-6)
    assert outcome.iteration == pytest.approx(2 * 10 * 0.01, rel=1e-6)
    assert outcome.running == pytest.approx(8.0, rel=1e-6)


def test_a_slow_core_serves_its_sessions_one_after_the_other():
    one = Simulation(work(tasks=8), STEADY, ENGINE, UPDATE, FLEET).run(1).iteration
    eight = Simulation(work(tasks=8), STEADY, ENGINE, UPDATE, replace(FLEET, cores=8)).run(1).iteration
    assert eight == pytest.approx(0.2 + 0.1 + 0.2 + 1.5)
    # the last reset ends after 8 x 0.2; its first step waits for those of the seven others that are on their way
    assert one == pytest.approx(8 * 0.2 + 0.1 + 0.05 + 0.1 + 0.05 + 1.5, rel=0.2) and one > 8 * 0.2 + 1.5


# -- queues -----------------------------------------------------------------------------------------------------------


def waits(fleet: Fleet, rate: float, service: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    cores, found = Cores(fleet), []
    arrivals = np.cumsum(rng.exponential(1 / rate, size=len(service)))
    for now, seconds in zip(arrivals.tolist(), service.tolist(), strict=True):
        found.append(cores.call(0, now, seconds) - now - seconds)
    return np.array(found)


def batches(values: np.ndarray, count: int = 20) -> tuple[float, float]:
    """Mean and its standard error, from means of long stretches, which are nearly independent."""
    means = values[len(values) // 20 :][: len(values) // 25 * 20].reshape(count, -1).mean(axis=1)
    return float(means.mean()), float(means.std(ddof=1) / count**0.5)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.5), (1, 0.8), (2, 0.7), (8, 0.8)])
def test_waiting_times_are_those_of_the_queue_m_m_c(servers, load):
    rng = np.random.default_rng(servers)
    found = waits(replace(FLEET, cores=servers, sticky=False), servers * load, rng.exponential(1.0, 250_000), rng)
    offered = servers * load
    last = offered**servers / factorial(servers) / (1 - load)
    erlang_c = last / (sum(offered**n / factorial(n) for n in range(servers)) + last)
    mean, error = batches(found)
    assert mean == pytest.approx(erlang_c / (servers * (1 - load)), abs=4 * error)
    assert error < 0.1 * mean
    assert (found > 1e-6).mean() == pytest.approx(erlang_c, abs=0.02)


@pytest.mark.parametrize("sigma", [0.0, 0.6, 1.0])
def test_lognormal_calls_wait_as_pollaczek_and_khinchine_say(sigma):
    rng, load = np.random.default_rng(3), 0.6
    service = Lognormal.of_mean(1.0, sigma).at(rng.standard_normal(250_000))
    mean, error = batches(waits(FLEET, load, service, rng))
    assert mean == pytest.approx(load * np.exp(sigma**2) / 2 / (1 - load), abs=4 * error)


def test_new_sessions_go_to_the_core_with_the_fewest_and_not_to_a_lost_server():
    cores = Cores(replace(FLEET, cores=4, cores_per_server=2))
    seats = [cores.seat() for _ in range(8)]
    assert sorted(seats) == [0, 0, 1, 1, 2, 2, 3, 3]
    cores.leave(3)
    assert cores.seat() == 3
    assert list(cores.lose(1, until=10.0)) == [2, 3]
    assert {cores.seat() for _ in range(4)} == {0, 1}
    cores.back(1)
    assert {cores.seat() for _ in range(4)} == {2, 3}


# -- what always holds ------------------------------------------------------------------------------------------------

fleets = st.builds(
    Fleet,
    engines=st.integers(1, 4),
    slots=st.integers(1, 9),
    colocated=st.booleans(),
    training_gpus=st.integers(1, 4),
    staleness=st.integers(0, 3),
    cores=st.integers(1, 5),
    cores_per_server=st.integers(1, 3),
    place=st.sampled_from(["servers", "inline"]),
    sticky=st.booleans(),
    request=st.sampled_from([0.0, 1e-3]),
    network=st.sampled_from([0.0, 0.02]),
    client=st.sampled_from([0.0, 2e-3]),
    client_blocks=st.booleans(),
    failures=st.builds(
        Failures,
        server_hours=st.sampled_from([0.0, 0.02]),
        gpu_hours=st.sampled_from([0.0, 0.05]),
        hung=st.sampled_from([0.0, 0.01]),
        restart=st.sampled_from([0.5, 20.0]),
        deadline=st.just(2.0),
        attempts=st.integers(1, 2),
        checkpoint=st.integers(1, 5),
    ),
)


@settings(max_examples=60, deadline=None)
@given(fleet=fleets, tasks=st.integers(1, 5), size=st.integers(1, 4), seed=st.integers(0, 2**20))
def test_every_started_group_is_consumed_failed_or_in_flight(fleet, tasks, size, seed):
    slow = EnvironmentSpeed(Lognormal(0.02, 1.0), Lognormal(0.1, 0.5), 0.0, wait=Lognormal(0.01, 0.3))
    s = Simulation(varied(tasks, size), slow, engines(), UpdateSpeed(1e-5, 0.2, 0.1), fleet, seed)
    outcome = s.run(4, warm_up=1)
    assert s.version == 4 and s.consumed == 4 * tasks
    assert s.started == s.consumed + s.empty + len(s.first) + len(s.ready) + len(s.groups) + len(s.training)
    assert s.started <= (s.version + fleet.staleness + 1) * tasks + s.empty
    assert outcome.oldest <= fleet.staleness, "groups are taken in the order in which they were started"
    for number, group in s.groups.items():
        assert group.missing == sum(episode.group == number for episode in s.episodes.values()) > 0
    seated = [episode for episode in s.episodes.values() if episode.core >= 0]
    assert sum(s.cores.sessions) == len(seated) == sum(engine.episodes for engine in s.engines)
    for number, engine in enumerate(s.engines):
        mine = [name for name, episode in s.episodes.items() if episode.engine == number]
        assert len(mine) == engine.episodes + len(engine.waiting) and engine.episodes <= fleet.slots
        running = [name for _, name in engine.running]
        assert sorted(running) == sorted(name for name in mine if s.episodes[name].generating)
    assert sum(outcome.engines.values()) == pytest.approx(1.0, abs=1e-6)
    assert outcome.oldest <= fleet.staleness
    assert not s.failed or fleet.failures.hung or fleet.failures.gpu_hours


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_every_token_of_what_is_trained_has_one_version(staleness):
    fleet = replace(FLEET, engines=2, staleness=staleness, colocated=False)
    s = Simulation(work(tasks=3, size=2, steps=4, response=30), STEADY, engines(), UPDATE, fleet)
    s.run(6)
    assert sum(s.ages.values()) == pytest.approx(s.consumed * 2 * 4 * 30)
    assert max(s.ages) <= staleness


def test_tokens_of_a_response_that_a_sync_interrupts_have_both_versions():
    fleet = replace(FLEET, staleness=1, colocated=True, slots=2)
    nothing = EnvironmentSpeed(Lognormal(0.0), Lognormal(0.0), 0.0)
    s = Simulation(varied(1, 1, sigma=0.8), nothing, ENGINE, UpdateSpeed(0.0, 0.3, 0.0), fleet, seed=5)
    mixed = 0
    original = s._count

    def counted(engine: Engine, episode: object) -> None:
        nonlocal mixed
        before = dict(episode.tokens)  # type: ignore[attr-defined]
        original(engine, episode)  # type: ignore[arg-type]
        tokens = episode.tokens  # type: ignore[attr-defined]
        grown = {v: n - before.get(v, 0.0) for v, n in tokens.items() if n != before.get(v)}
        assert sum(grown.values()) == pytest.approx(episode.drawn.responses[episode.call])  # type: ignore[attr-defined]
        mixed += len(grown) > 1

    s._count = counted  # type: ignore[method-assign]
    s.run(30)
    assert mixed > 5


def outcome_of(fleet: Fleet, seed: int = 0, updates: int = 6, sigma: float = 0.4, env: float = 0.02) -> Outcome:
    speed = EnvironmentSpeed(Lognormal(env, 0.5), Lognormal(2 * env, 0.5), 0.0)
    s = Simulation(varied(6, 4, sigma), speed, engines(), UpdateSpeed(2e-5, 0.2, 0.1), fleet, seed)
    warm_up = fleet.staleness + 1
    return s.run(updates + warm_up, warm_up)


@settings(max_examples=15, deadline=None)
@given(cores=st.integers(1, 8), more=st.integers(1, 8), seed=st.integers(0, 1000), sticky=st.booleans())
def test_more_cores_are_not_slower_on_the_same_episodes(cores, more, seed, sticky):
    fleet = replace(FLEET, engines=2, slots=16, sticky=sticky)
    few, many = (outcome_of(replace(fleet, cores=n), seed, 2).iteration for n in (cores, cores + more))
    assert many <= 1.05 * few


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 1000), staleness=st.integers(0, 2), colocated=st.booleans())
def test_staleness_does_not_lower_throughput(seed, staleness, colocated):
    fleet = replace(FLEET, engines=2, slots=8, cores=8, colocated=colocated)
    less, more = (outcome_of(replace(fleet, staleness=k), seed, 12).iteration for k in (staleness, staleness + 1))
    assert more <= 1.06 * less


def test_staleness_hides_the_update_on_devices_of_its_own():
    fleet = replace(FLEET, engines=2, slots=16, cores=8, colocated=False)
    slow = replace(UPDATE, fixed=1.5, sync=0.05)

    def at(k: int) -> Outcome:
        s = Simulation(varied(6, 4), STEADY, engines(), slow, replace(fleet, staleness=k))
        return s.run(12 + k, k)

    synchronous, one = at(0), at(1)
    assert synchronous.off_policy == 0.0 and synchronous.training_busy < 0.6
    assert one.iteration < 0.75 * synchronous.iteration and one.off_policy > 0.5


def test_equal_seeds_give_equal_outcomes_and_others_do_not():
    fleet = replace(
        FLEET, engines=2, cores=2, failures=Failures(hung=0.01, gpu_hours=0.05, server_hours=0.05, restart=5)
    )
    assert outcome_of(fleet, 3) == outcome_of(fleet, 3)
    assert outcome_of(fleet, 3).iteration != outcome_of(fleet, 4).iteration


def test_episodes_do_not_depend_on_failures_and_a_second_attempt_is_another():
    speed = EnvironmentSpeed(Lognormal(0.1, 0.5), Lognormal(0.1, 0.5), 0.0)
    one, other = (Draws(varied(), speed, hung, 7) for hung in (0.0, 0.2))
    for a, b in zip(one.group(3), other.group(3), strict=True):
        assert (a.steps, a.responses, a.env) == (b.steps, b.responses, b.env) and a.hangs == -1
    assert any(drawn.hangs >= 0 for number in range(5) for drawn in other.group(number))
    assert one.group(3, attempt=1)[0].responses != one.group(3)[0].responses


# -- failures ---------------------------------------------------------------------------------------------------------


def test_a_call_that_hangs_is_given_up_at_its_deadline_and_the_episode_dispatched_again_once():
    fleet = replace(FLEET, failures=Failures(hung=0.02, deadline=30.0))
    s = Simulation(work(tasks=50, steps=9), STEADY, ENGINE, UPDATE, replace(fleet, slots=50, cores=50))
    outcome = s.run(4)
    lost = 1 - 0.98**10  # a reset and nine steps
    assert s.redispatched == pytest.approx(200 * lost, abs=4 * (200 * lost * (1 - lost)) ** 0.5)
    assert s.failed == pytest.approx(200 * lost**2, abs=4 * (200 * lost**2) ** 0.5)
    assert outcome.iteration > 30.0


def test_where_everything_hangs_the_simulation_says_so():
    fleet = replace(FLEET, failures=Failures(hung=0.5, deadline=1.0, attempts=1))
    with pytest.raises(ConfigError, match="--failures"):
        Simulation(work(steps=50, tasks=2), STEADY, ENGINE, UPDATE, fleet).run(10_000)


def test_a_lost_server_costs_time_and_no_episode():
    fleet = replace(FLEET, engines=2, slots=16, cores=4, cores_per_server=2)
    failing = replace(fleet, failures=Failures(server_hours=0.003, restart=3.0))
    sound, lost = outcome_of(fleet, updates=10), outcome_of(failing, updates=10)
    assert lost.failed == lost.redispatched == 0.0
    assert lost.iteration > 1.02 * sound.iteration


def test_a_lost_engine_s_episodes_begin_again_on_another():
    fleet = replace(FLEET, engines=3, slots=16, cores=4, colocated=False)
    outcome = outcome_of(replace(fleet, failures=Failures(gpu_hours=0.01, restart=2.0, checkpoint=1)), updates=10)
    assert outcome.redispatched > 0 and outcome.engines["failure"] > 0


def test_a_lost_training_process_costs_its_restart_and_the_time_since_the_checkpoint():
    failures = Failures(gpu_hours=0.004, restart=7.0, checkpoint=10**6)
    s = Simulation(work(), STEADY, ENGINE, UPDATE, replace(FLEET, failures=failures))
    outcome = s.run(20)
    sound = Simulation(work(), STEADY, ENGINE, UPDATE, FLEET).run(20)
    assert s.now == pytest.approx(20 * sound.iteration)
    assert outcome.iteration * 20 == pytest.approx(s.now + s.lost)
    assert s.lost > 7.0 and outcome.outage == pytest.approx(s.lost / (s.now + s.lost))


# -- sizes ------------------------------------------------------------------------------------------------------------


def test_as_many_cores_are_found_as_keep_the_loss_within_two_percent():
    fleet = replace(FLEET, engines=2, slots=16)
    speed = EnvironmentSpeed(Lognormal(0.05, 0.5), Lognormal(0.05, 0.5), 2**20, base=2**30)

    def simulate(cores: int) -> Outcome:
        return Simulation(varied(8, 4), speed, engines(), UPDATE, replace(fleet, cores=cores)).run(3)

    found = sized(simulate, 32, speed, per_server=4, memory=4.0 * 2**30)
    assert 1 < found.cores < 32
    assert found.outcome.iteration <= WITHIN * found.unlimited.iteration < simulate(found.cores - 1).iteration
    assert found.servers_for_cores == -(-found.cores // 4)
    assert found.servers_for_memory == -(-(found.cores * 1024 + 32) // 4096)
    assert list(found.tried) == sorted(found.tried)
