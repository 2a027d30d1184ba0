"""The frames of a journal, and the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from dustmap.journal.state import (
    Pattern,
    State,
    apart,
    fits,
    infinite,
    is_finite,
    kind_of,
    misfit,
    said,
)


class Frame:
    """One loop's part of a journal, under the names ``path/name``.

    ``restored`` is what this frame had saved, without what the frames inside it had;
    ``None`` where it starts afresh.
    """

    def __init__(self, path: str, restored: State | None) -> None:
        self.path = path
        self.restored = restored
        self._state: Callable[[], State] | None = None

    def expose(self, state: Callable[[], State]) -> None:
        """From now on this function says what to save; it is called when it is due."""
        self._state = state

    def take(self, pattern: Pattern, **parts: Pattern) -> dict[str, Any] | None:
        """All that this frame had saved, or ``None`` where it starts afresh.

        It is handed over, so that it takes no memory once it is used.

        Parameters
        ----------
        pattern
            What there must be.
        parts
            What there may be: all of a part, as ``part.name``, or nothing of it.

        Raises
        ------
        ValueError
            If something is missing, unknown, or of another kind, dtype or shape.
        """
        if self.restored is None:
            return None
        wanted = dict(pattern)
        for part, names in parts.items():
            named = {f"{part}.{name}": kind for name, kind in names.items()}
            if any(name in self.restored for name in named):
                wanted.update(named)
        for name in sorted(self.restored.keys() - wanted.keys()):
            raise misfit(f"{self.path}/{name}", "nothing", kind_of(self.restored[name]))
        for name, kind in wanted.items():
            if name not in self.restored:
                raise misfit(f"{self.path}/{name}", said(kind), "nothing")
            if not fits(self.restored[name], kind):
                found = kind_of(self.restored[name])
                raise misfit(f"{self.path}/{name}", said(kind), found)
        taken, self.restored = self.restored, None
        return taken

    def state(self) -> State:
        """What is to be saved now."""
        own = {} if self._state is None else self._state()
        return {f"{self.path}/{name}": value for name, value in own.items()}


class Journal:
    """The open frames of a run, and where their states go.

    Parameters
    ----------
    save
        Called at a safe point with the states of all open frames: finite numbers,
        strings, and contiguous tensors that share no memory with one another, but
        possibly with the run: write or copy them before returning. It may raise to end
        the run; what it was given is enough to go on from.
    due
        Whether to save now. It is asked at every safe point (each iteration of a
        solver), so it must be quick.
    restored
        What ``save`` was once given.
    """

    def __init__(
        self,
        *,
        save: Callable[[State], None],
        due: Callable[[], bool],
        restored: State | None = None,
    ) -> None:
        self._save = save
        self._due = due
        self._restored = {} if restored is None else dict(restored)
        # What was restored, until every frame of it is open again.
        self._whole = dict(self._restored)
        self._open: list[Frame] = []

    @classmethod
    def silent(cls) -> Journal:
        """One that saves nothing."""
        return cls(save=lambda _: None, due=lambda: False)

    @property
    def path(self) -> str:
        """Where in the run this is: the names of the open frames."""
        return self._open[-1].path if self._open else ""

    @contextmanager
    def frame(self, name: str) -> Iterator[Frame]:
        """A frame inside those that are open.

        Raises
        ------
        ValueError
            When the outermost is closed and something restored was not asked for.
        """
        path = f"{self.path}/{name}" if self._open else name
        frame = Frame(path, self._claimed(path))
        self._open.append(frame)
        try:
            yield frame
        finally:
            self._open.pop()
        if not self._open:
            self._require_all_claimed()

    def safe_point(self, *, remaking: bool = False) -> None:
        """Save now, if that is due.

        Parameters
        ----------
        remaking
            What is not saved is being made, and made again by a run that was taken up:
            frames may not be open yet that it has restored. Until they are, it stands
            where it stood, and what is saved is what was restored.

        Raises
        ------
        ValueError
            If something restored was not asked for: it belongs to another run.
        FloatingPointError
            If a number that would be saved is not finite.
        """
        if not remaking:
            self._require_all_claimed()
        if self._due():
            self._save(dict(self._whole) if self._restored else self.state())

    def require_finite(self, step: str, **values: Tensor | float) -> None:
        """Stop before numbers that are none reach a result, or what is saved.

        Raises
        ------
        FloatingPointError
            Naming the open frames, the step, and what is not finite.
        """
        for name, value in values.items():
            if not is_finite(value):
                where = f"{self.path}, {step}" if self._open else step
                raise infinite(f"{where}: {name.replace('_', ' ')}", value)

    def state(self) -> State:
        """The states of all open frames.

        Raises
        ------
        FloatingPointError
            If a number among them is not finite.
        """
        gathered: State = {}
        seen: set[int] = set()
        for frame in self._open:
            for key, value in frame.state().items():
                if not isinstance(value, str) and not is_finite(value):
                    raise infinite(key, value)
                gathered[key] = apart(value, seen)
        return gathered

    def _claimed(self, path: str) -> State | None:
        """The entries of one frame; they are handed out once."""
        start = f"{path}/"
        under = [key for key in self._restored if key.startswith(start)]
        if not under:
            return None
        own = [key for key in under if "/" not in key[len(start) :]]
        found = {key[len(start) :]: self._restored.pop(key) for key in own}
        if not self._restored:
            self._whole = {}
        return found

    def _require_all_claimed(self) -> None:
        for key, value in self._restored.items():
            raise misfit(key, "nothing", kind_of(value))
