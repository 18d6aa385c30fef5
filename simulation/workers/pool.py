"""The driver's pool of workers: members, distribution of work, and recovery from losses.

A round's results depend only on the division of its cohort into chunks. So the pool can change all
its decisions at any time: which worker processes a chunk, that another repeats it, that a worker
joins.
"""

import collections
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from simulation.engine.program import Program
from simulation.engine.scheduler import CohortInChunks, Nodes
from simulation.errors import NoWorkersError, RunError
from simulation.protocol import Chunk
from simulation.workers import worker as worker_lib
from simulation.workers.placement import Prediction, shares
from tff_suite import memory
from tff_suite.errors import FedError

# If this many workers were lost while they processed the same chunk, the chunk is the likely cause.
_MOST_LOSSES = 3
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_FOR_FACTS = 30.0
# A worker always has its next order before it completes the current one.
_ORDERS_AHEAD = 2
_SPEED_MEMORY = 0.8
# Most bytes of clients' own models that are sent for evaluation at a time.
_PERSONAL_BYTES = 1 << 28


class _Member:
    """A worker as the driver knows it."""

    def __init__(self, number, actor, beginning):
        self.number, self.actor = number, actor
        # Reference that is ready once the worker has begun; then `None`.
        self.beginning, self.facts = beginning, None
        self.queue: collections.deque[Chunk] = collections.deque()
        self.orders: dict[Any, list[Chunk]] = {}
        self.holds: set[Chunk] = set()
        self.speed = 1.0

    @property
    def name(self):
        where = f" on {self.facts.host}" if self.facts else ""
        return f"worker {self.number}{where}"


class RayPool:
    """Workers of a run, as `simulation.engine.pool.Pool`."""

    def __init__(
        self,
        ray: Any,
        programs: Mapping[str, Program],
        make: Callable[[], tuple[Any, Any]],
        number: int,
        *,
        steps: Callable[[int], np.ndarray],
        room: Callable[[], int],
        timeout: float,
        warn: Callable[[str], None],
    ):
        """Starts the workers.

        Args:
          ray: The module, connected.
          programs: Name → program, as from `simulation.rounds.one_program.RunMethod`.
          make: Starts a worker; returns it, and a reference that yields its facts once it has
            begun.
          number: Number of workers.
          steps: Round, from 0 → predicted local steps of each client of its cohort.
          room: Returns the number of workers for which the cluster has resources now.
          timeout: Seconds without any worker after which the run stops.
          warn: Prints or logs a warning of one line.
        """
        self._ray, self._programs, self._make, self._number = ray, programs, make, number
        self.spread = self
        self._steps, self._room, self._timeout, self._warn = steps, room, timeout, warn
        self._members: list[_Member] = []
        self._numbers = itertools.count()
        # By name of the program.
        self._predictions = collections.defaultdict(Prediction)
        self._losses: collections.Counter = collections.Counter()
        self._sent: list[Any] = []
        # Chunks of lost workers that are not assigned to others yet.
        self._orphans: list[Chunk] = []
        self._failed_starts = 0
        # Bytes of the current round: broadcasts by reference, aggregates, and states in both
        # directions. Also the numbers of nodes and orders.
        self.bytes: collections.Counter = collections.Counter()
        self._round, self._at_work = None, set()
        self._recruit()

    def close(self) -> None:
        """Ends the workers."""
        for member in self._members:
            self._ray.kill(member.actor, no_restart=True)
        self._members.clear()

    def wait_for_all(self) -> None:
        """Waits until all workers have begun for which the cluster has resources.

        Raises:
          NoWorkersError: If no worker begins within the timeout.
          RunError: If a worker cannot carry out the run.
        """
        self._look(wait_for_all=True)

    def moved(self) -> dict[str, float]:
        """Returns column → measurement of the latest round's communication.

        Broadcasts are counted once, since a machine's object store holds them for all its workers.
        """
        names = {"down_mb": "down", "up_mb": "up", "states_mb": "states"}
        megabytes = {name: self.bytes[kind] / 1e6 for name, kind in names.items()}
        return {**megabytes, "workers": len(self._at_work)}

    def ready(self) -> list[worker_lib.Facts]:
        """Returns the facts of the workers that have begun."""
        return [m.facts for m in self._members if m.facts]

    def work(
        self, cohort: CohortInChunks, phase: int, sent: Any, states_of: Any
    ) -> Iterator[tuple[Nodes, Any]]:
        """As `simulation.engine.pool.Pool.work`.

        Raises:
          NoWorkersError: If no worker is left and none comes in time.
          RunError: If a worker fails at what it does.
        """
        if phase == 0:
            self._begin(cohort)
        self._send(cohort, phase, sent)
        self._share_out(cohort, phase)
        left = len(cohort.chunks)
        while left:
            if not self.ready():
                self._look(wait=True)
            orphans, self._orphans = self._orphans, []
            self._deal(sorted(orphans))
            for member in self._ready():
                self._give_orders(member, cohort, phase, states_of)
            for member, reference in self._done():
                answer = self._answer(member, reference)
                if answer is None:
                    self._lose(member)
                    continue
                chunks = member.orders.pop(reference)
                self._learn(cohort.stage, member, chunks, answer.seconds)
                member.holds.update(chunks)
                self._at_work.add(member.number)
                left -= len(chunks)
                self.bytes["up"] += memory.nbytes(answer.nodes)
                self.bytes["nodes"] += len(answer.nodes)
                self.bytes["orders"] += 1
                self.bytes["states"] += memory.nbytes(answer.states)
                yield answer.nodes, answer.states

    def evaluate(
        self, name: str, weights: Sequence[Any], number: int, size: int
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Evaluates on the workers; each gets consecutive chunks of a test set.

        Args:
          name: The test set, of `simulation.measures.evaluations.TEST_SETS`.
          weights: The model's trainable weights.
          number: Number of its chunks.
          size: Examples per chunk.

        Returns:
          The results of `simulation.measures.evaluation.Evaluator.sums` for all chunks, in order.

        Raises:
          NoWorkersError: If no worker is left and none comes in time.
          RunError: If a worker fails at what it does.
        """
        reference = self._put(weights)

        def order(actor, part):
            return actor.evaluate.remote(name, reference, part, size)

        return iter(self._shared_out([1.0] * number, order))

    def evaluate_each(
        self,
        name: str,
        weights: Sequence[Any],
        own_of: Callable[[int], Any],
        clients: Sequence[int],
        sizes: Sequence[int],
    ) -> Iterator[tuple[int, Any]]:
        """Evaluates clients with their own weights on the workers.

        Args:
          name: Name of the examples, see `simulation.measures.evaluations.Share.of_each`.
          weights: The trainable weights for clients without their own.
          own_of: Index of a client → its own weights; `None` if it has none.
          clients: Indices of the clients.
          sizes: Number of examples of each.

        Yields:
          The index of each client and its metrics.

        Raises:
          NoWorkersError: As `evaluate`.
          RunError: As `evaluate`.
        """
        reference, block, held = self._put(weights), [], 0
        costs = dict(zip(clients, map(float, sizes), strict=True))

        def done(block):
            return self._shared_out(
                [costs[k] for k, _ in block],
                lambda actor, part: actor.evaluate_each.remote(
                    name, reference, block[part.start : part.stop]
                ),
            )

        for client in clients:
            own = own_of(client)
            block.append((client, own and [np.asarray(w) for w in own]))
            held += memory.nbytes(block[-1][1])
            if held > _PERSONAL_BYTES:
                yield from done(block)
                block, held = [], 0
        if block:
            yield from done(block)

    def _put(self, weights):
        return self._ray.put([np.asarray(w) for w in weights])

    def _shared_out(self, costs, order):
        """Assigns consecutive items to each worker, and items of lost workers to others.

        Args:
          costs: Cost of each item.
          order: (actor, range of items) → reference to their results.

        Returns:
          The results of all items.
        """
        number, found = len(costs), {}
        while len(found) < number:
            self._look(wait=not self._ready())
            left = [i for i in range(number) if i not in found]
            ready, orders = self._ready(), {}
            # If the workers stay the same, each evaluates the same items every time, from memory.
            for member, places in zip(ready, shares(costs, [1.0] * len(ready)), strict=True):
                mine = [i for i in places if i in left]
                if mine:
                    part = range(mine[0], mine[-1] + 1)
                    orders[order(member.actor, part)] = member, part
            for reference, (member, part) in orders.items():
                given = self._answer(member, reference)
                if given is None:
                    self._lose(member)
                else:
                    found.update(zip(part, given, strict=True))
        return [found[i] for i in range(number)]

    def _begin(self, cohort):
        """Begins a round, or another program of the same round."""
        if cohort.round_index != self._round:
            self.bytes.clear()
            self._at_work.clear()
        self._round = cohort.round_index
        self._sent.clear()
        self._losses.clear()
        self._look(wait=not self._ready())
        steps = self._steps(cohort.round_index) if cohort.steps is None else cohort.steps
        predicted = self._predictions[cohort.stage].seconds
        self._steps_of = {c: steps[c.start : c.stop] for c in cohort.chunks}
        self._cost_of = {c: predicted(s) for c, s in self._steps_of.items()}
        for member in self._members:
            member.holds.clear()

    def _send(self, cohort, phase, sent):
        phases = self._programs[cohort.stage].phases
        earlier = {n for of in phases[:phase] for n in of.received}
        new = {
            n: list(map(np.asarray, sent(n))) for n in phases[phase].received if n not in earlier
        }
        self.bytes["down"] += memory.nbytes(new)
        self._sent.append(self._ray.put(new))

    def _share_out(self, cohort, phase):
        """Gives each worker its chunks of the previous phase, and distributes the rest."""
        free = dict.fromkeys(cohort.chunks)
        for member in self._ready():
            member.queue.clear()
            if phase:
                member.queue.extend(c for c in cohort.chunks if c in member.holds)
                for chunk in member.queue:
                    free.pop(chunk)
        self._deal(list(free))

    def _deal(self, chunks):
        ready = self._ready()
        if not ready:
            self._orphans += chunks
            return
        costs = [self._cost_of[c] for c in chunks]
        for member, places in zip(ready, shares(costs, [m.speed for m in ready]), strict=True):
            member.queue.extend(chunks[i] for i in places)

    def _give_orders(self, member, cohort, phase, states_of):
        while len(member.orders) < _ORDERS_AHEAD:
            if not member.queue:
                self._steal(member)
            if not member.queue:
                return
            chunks = self._half(member.queue)
            order = worker_lib.Order(
                cohort.stage,
                cohort.round_index,
                phase,
                chunks,
                len(cohort.chunks),
                list(self._sent),
                self._states(member, cohort, phase, chunks, states_of),
                {c.number: cohort.given(c) for c in chunks} if cohort.work is not None else {},
                () if member.queue else self._following(member, cohort),
            )
            member.orders[member.actor.work.remote(order)] = chunks

    def _half(self, queue):
        """Takes the first half of a queue by predicted time; other workers may steal the rest."""
        left, taken = sum(self._cost_of[c] for c in queue) / 2, []
        while queue and (not taken or self._cost_of[queue[0]] <= left):
            taken.append(queue.popleft())
            left -= self._cost_of[taken[-1]]
        return taken

    def _steal(self, member):
        """Steals the last chunk of the busiest worker, unless that worker holds its kept values."""
        others = [m for m in self._ready() if m is not member]
        slowest = max(others, key=lambda m: len(m.queue) / m.speed, default=None)
        if slowest is not None and slowest.queue and slowest.queue[-1] not in slowest.holds:
            member.queue.append(slowest.queue.pop())

    def _states(self, member, cohort, phase, chunks, states_of):
        """Returns the clients' states, if this phase or a repeated earlier one reads them."""
        states, phases = {}, self._programs[cohort.stage].phases
        for chunk in chunks:
            first = phase if chunk in member.holds else 0
            if any(of.reads_states for of in phases[first : phase + 1]):
                states[chunk.number] = states_of(chunk)
        self.bytes["states"] += memory.nbytes(states)
        return states

    def _following(self, member, cohort):
        """Returns the chunks with which a worker will probably begin the next round."""
        if not cohort.following:
            return ()
        ready = self._ready()
        costs = [1.0] * len(cohort.following)
        places = shares(costs, [m.speed for m in ready])[ready.index(member)]
        return [cohort.following[i] for i in places[:2]]

    def _learn(self, process, member, chunks, seconds):
        prediction = self._predictions[process]
        for chunk, took in zip(chunks, seconds, strict=True):
            steps = self._steps_of[chunk]
            expected = self._cost_of[chunk]
            prediction.learn(steps, took * member.speed)
            if expected > 0 and took > 0 and prediction.known > 2 * len(self._members):
                speed = np.clip(expected / took, 0.1, 10.0)
                member.speed = _SPEED_MEMORY * member.speed + (1 - _SPEED_MEMORY) * float(speed)

    def _ready(self):
        return [m for m in self._members if m.facts]

    def _done(self) -> Iterator[tuple[_Member, Any]]:
        """Waits briefly; yields orders that are complete or whose worker is lost."""
        owners = {reference: m for m in self._members for reference in m.orders}
        if not owners:
            return
        done, _ = self._ray.wait(list(owners), num_returns=1, timeout=_SECONDS_BETWEEN_LOOKS)
        for reference in done:
            # The worker may have been lost, with its orders, while another one was processed.
            if reference in owners[reference].orders:
                yield owners[reference], reference

    def _answer(self, member, reference):
        """Returns the result of an order; `None` if its worker is lost.

        Raises:
          RunError: If the worker has failed.
        """
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except exceptions.RayTaskError as e:
            raise _told(member.name, e) from e
        except exceptions.RayError:
            return None

    def _lose(self, member):
        """Leaves the chunks of a lost worker to others."""
        orphans = [*itertools.chain(*member.orders.values()), *member.queue]
        # Only its oldest order was in progress, so only that one may have caused the loss.
        chunks = next(iter(member.orders.values()), ())
        self._losses[chunks[0] if chunks else None] += 1
        if chunks and self._losses[chunks[0]] == _MOST_LOSSES:
            raise RunError(
                f"{_MOST_LOSSES} workers were lost over the same {chunks[0].stop - chunks[0].start}"
                " clients, which may need more memory than a machine has; use fewer workers per "
                "machine or a smaller --clients_per_chunk."
            )
        member.orders.clear()
        self._remove(member)
        self._orphans += orphans
        self._warn(f"{member.name} was lost; other workers repeat its work.")

    def _remove(self, member):
        self._members.remove(member)
        self._ray.kill(member.actor, no_restart=True)

    def _recruit(self):
        """Starts workers to replace missing ones."""
        while len(self._members) < self._number:
            actor, beginning = self._make()
            self._members.append(_Member(next(self._numbers), actor, beginning))

    def _look(self, wait: bool = False, wait_for_all: bool = False) -> None:
        """Registers workers that have begun; may wait for one, or for all that can be started.

        Raises:
          NoWorkersError: If no worker begins within the timeout.
        """
        until = time.monotonic() + self._timeout
        while True:
            self._recruit()
            starting = {m.beginning: m for m in self._members if not m.facts}
            seconds = _SECONDS_BETWEEN_LOOKS if wait or wait_for_all else 0
            if starting:
                done, _ = self._ray.wait(list(starting), num_returns=1, timeout=seconds)
                for reference in done:
                    self._take_in(starting[reference])
            ready = len(self._ready())
            if ready >= (min(self._number, self._room()) if wait_for_all else int(wait)):
                if ready or not wait_for_all:
                    return
            if time.monotonic() > until:
                if ready:
                    return
                raise NoWorkersError(
                    f"There was no worker for {self._timeout:g} seconds (--worker_timeout)."
                )

    def _take_in(self, member):
        exceptions = self._ray.exceptions
        try:
            facts = self._ray.get(member.beginning)
        except exceptions.RayTaskError as e:
            # Other versions of code may be the cause, so these are checked first.
            with contextlib.suppress(exceptions.RayError):
                answer = member.actor.facts.remote()
                _require_versions(self._ray.get(answer, timeout=_SECONDS_FOR_FACTS))
            raise _told(member.name, e) from e
        except exceptions.RayError as e:
            if getattr(e, "actor_init_failed", False):
                raise RunError(
                    f"{member.name} cannot start: {str(e).strip().splitlines()[-1].strip()}; all "
                    "machines need the repository, its environment and this working directory at "
                    "the same paths."
                ) from e
            self._remove(member)
            self._failed_starts += 1
            if self._failed_starts == _MOST_LOSSES:
                raise RunError(
                    f"{_MOST_LOSSES} workers were lost during their start, possibly for lack of "
                    f"memory ({' '.join(str(e).split())[-300:]})."
                ) from e
            return
        _require_versions(facts)
        member.facts, self._failed_starts = facts, 0


def _require_versions(facts):
    ours = worker_lib.versions()
    for name, version in facts.versions.items():
        if version != ours[name]:
            raise RunError(
                f"A worker on {facts.host} has another version than this process: {name} "
                f"{version}, not {ours[name]}; all machines need the same environment and code."
            )


def _told(name: str, error: Any) -> Exception:
    """Returns a worker's error as one line for the user."""
    cause = error.cause
    text = " ".join(str(cause).split()) or type(cause).__name__
    if isinstance(cause, FedError):
        return type(cause)(f"{name}: {text}")
    if isinstance(cause, MemoryError):
        return RunError(f"{name} is out of memory; use fewer workers per machine.")
    return RunError(f"{name} failed: {type(cause).__name__}: {text[:500]}")
