"""What the Conductor sees of the simulated cluster: what instances reported, `age` seconds ago."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from mooncake_edu.conductor import Change, ClusterView, Index, Pool, Query, Roster


class Side:
    """One role's instances, in columns: work waiting and under way, and requests placed there.

    With `slots`, an instance with so many requests is full, and not used while others are not.
    """

    def __init__(self, numbers: Sequence[int], stages: Sequence[int], slots: int | None = None) -> None:
        self.numbers, self.stages, self.slots = numbers, stages, slots
        self.place = {number: place for place, number in enumerate(numbers)}
        self.waiting = [0.0] * len(numbers)  # seconds of prefill
        self.prompts = [0] * len(numbers)
        self.until = [0.0] * len(numbers)  # when the prefill under way will have ended
        self.requests = [0] * len(numbers)
        self.context = [0] * len(numbers)
        self.decoding = [0] * len(numbers)  # requests whose KVCache is there, with the tokens of their prompts
        self.tokens = [0] * len(numbers)
        self.usable = [True] * len(numbers)
        self.sending = [0.0] * len(numbers)  # seconds of fetches from there
        self.fetches = [0] * len(numbers)

    def clear(self, place: int) -> None:
        """Nothing is there any more."""
        for column in (self.prompts, self.requests, self.context, self.decoding, self.tokens, self.fetches):
            column[place] = 0
        for times in (self.waiting, self.until, self.sending):
            times[place] = 0.0

    def pool(self, time: float, cached: Sequence[int]) -> Pool:
        """The columns as a policy reads them."""
        queue = [w + u - time if u > time else w for w, u in zip(self.waiting, self.until, strict=True)]
        return Pool(self.numbers, self.stages, queue, cached, self.requests, self.context, self._open(),
                    self.sending)  # fmt: skip

    def _open(self) -> Sequence[bool]:
        if self.slots is None or max(self.requests) < self.slots:
            return self.usable
        free = [usable and held < self.slots for usable, held in zip(self.usable, self.requests, strict=True)]
        return free if any(free) else self.usable


class Sight:
    """Reports in the order they were made, each taken in when it is `age` seconds old.

    An instance cannot be used where `queue` prompts wait, or that many requests beyond the slots of its batch.
    """

    def __init__(self, prefill: Side, decode: Side, age: float, queue: int = 1 << 40) -> None:
        self.prefill, self.decode = prefill, decode
        self.roster = Roster()
        self._age, self._queue = age, queue
        self._reports: deque[tuple[float, Callable[..., None], tuple[object, ...]]] = deque()
        self._index = Index()
        self._changes = dict.fromkeys(prefill.numbers, 0)
        self._epochs = dict.fromkeys(prefill.numbers, 0)

    def report(self, now: float, what: Callable[..., None], *values: object) -> None:
        """Something changed at an instance: `what` is a method below."""
        if self._age:
            self._reports.append((now + self._age, what, values))
        else:
            what(*values)

    def queued(self, number: int, estimate: float) -> None:
        """A prompt waits there, estimated to take so many seconds."""
        place = self.prefill.place[number]
        self.prefill.waiting[place] += estimate
        self.prefill.prompts[place] += 1
        self._weigh(number, self.prefill.prompts[place] >= self._queue)

    def started(self, number: int, estimate: float, until: float) -> None:
        """It is being computed."""
        place = self.prefill.place[number]
        self.prefill.prompts[place] -= 1
        left = self.prefill.waiting[place] - estimate
        self.prefill.waiting[place] = max(left, 0.0) if self.prefill.prompts[place] else 0.0  # rounding adds up
        self.prefill.until[place] = until
        self._weigh(number, self.prefill.prompts[place] >= self._queue)

    def free(self, number: int) -> None:
        """The prefill there has ended, whatever was estimated."""
        self.prefill.until[self.prefill.place[number]] = 0.0

    def placed(self, number: int, tokens: int) -> None:
        """A request of so many tokens was placed there to decode; negative ones when it ended."""
        place = self.decode.place[number]
        self.decode.requests[place] += 1 if tokens > 0 else -1
        self.decode.context[place] += tokens
        if self.decode.slots is not None:  # where both is done, prompts that wait are what counts
            self._weigh(number, self.decode.requests[place] >= self.decode.slots + self._queue)

    def decodes(self, number: int, tokens: int) -> None:
        """The KVCache of so many tokens came there to be decoded; negative ones when it went."""
        place = self.decode.place[number]
        self.decode.decoding[place] += 1 if tokens > 0 else -1
        self.decode.tokens[place] += tokens

    def sends(self, number: int, seconds: float) -> None:
        """A fetch from there takes so many seconds of its network; negative ones when it has ended."""
        side, place = self.prefill, self.prefill.place[number]
        side.fetches[place] += 1 if seconds > 0 else -1
        side.sending[place] = max(side.sending[place] + seconds, 0.0) if side.fetches[place] else 0.0

    def cached(self, number: int, new: Sequence[int], gone: Sequence[int]) -> None:
        """Blocks were stored there, then others went."""
        self._changes[number] += 1
        self._index.take(number, Change(self._epochs[number], self._changes[number], new, gone))

    def lost(self, number: int) -> None:
        """An instance is down, and all that it had is gone; its next changes are of another epoch."""
        self.roster.probed(number, well=False)
        for side in (self.prefill, self.decode):
            if (place := side.place.get(number)) is not None:
                side.clear(place)
        if number in self._epochs:
            self._epochs[number] += 1
            self._changes[number] = 0
            self.cached(number, (), ())
        self.roster.full.discard(number)
        self._mark(number)

    def drains(self, number: int) -> None:
        """An instance takes nothing new."""
        self.roster.draining.add(number)
        self._mark(number)

    def failed(self, number: int) -> None:
        """An instance did not answer."""
        self.roster.failed(number)
        self._mark(number)

    def back(self, number: int) -> None:
        """An instance takes requests again."""
        self.roster.draining.discard(number)
        self.roster.probed(number, well=True)
        self._mark(number)

    def _weigh(self, number: int, full: bool) -> None:
        if full != (number in self.roster.full):
            (self.roster.full.add if full else self.roster.full.discard)(number)
            self._mark(number)

    def _mark(self, number: int) -> None:
        for side in (self.prefill, self.decode):
            if (place := side.place.get(number)) is not None:
                side.usable[place] = self.roster.usable(number)

    def look(self, now: float, query: Query) -> ClusterView:
        """The view for a request."""
        while self._reports and self._reports[0][0] <= now:
            _, what, values = self._reports.popleft()
            what(*values)
        seen = now - self._age
        prefill = self.prefill.pool(seen, self._index.cached(query, self.prefill.numbers))
        if self.decode is self.prefill:
            return ClusterView(prefill, prefill, self._age)
        return ClusterView(prefill, self.decode.pool(seen, ()), self._age)
