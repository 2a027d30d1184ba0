"""A journal of long loops: what each would need to go on from where it is.

A loop opens a *frame* and exposes a function that tells its state. Frames nest: while
a solver runs inside a step inside a fit, three of them are open. At a *safe point*,
between two steps of the innermost loop, the states of all open frames together say
where the whole run stands; none is computed before it is asked for.

To take a run up again, the same program is run with the state that was saved. Every
frame finds in it what it had exposed, goes on from there, and opens the frames inside
as it did before. What can be computed again, bit by bit the same, is not saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Value = Tensor | float | int | bool | str
State = dict[str, Value]
# What an entry is: a number's type, or a tensor's dtype and shape (None: any length).
Kind = type | tuple[torch.dtype, tuple[int | None, ...]]
Pattern = Mapping[str, Kind]


def like(tensor: Tensor) -> Kind:
    """The kind of tensors of this one's dtype and shape."""
    return tensor.dtype, tuple(tensor.shape)


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
            raise _misfit(f"{self.path}/{name}", "nothing", _kind(self.restored[name]))
        for name, kind in wanted.items():
            if name not in self.restored:
                raise _misfit(f"{self.path}/{name}", _said(kind), "nothing")
            if not _fits(self.restored[name], kind):
                found = _kind(self.restored[name])
                raise _misfit(f"{self.path}/{name}", _said(kind), found)
        return dict(self.restored)

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
            if not _is_finite(value):
                where = f"{self.path}, {step}" if self._open else step
                raise _infinite(f"{where}: {name.replace('_', ' ')}", value)

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
                if not isinstance(value, str) and not _is_finite(value):
                    raise _infinite(key, value)
                gathered[key] = _apart(value, seen)
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
            raise _misfit(key, "nothing", _kind(value))


def _misfit(key: str, expected: str, found: str) -> ValueError:
    return ValueError(
        f"the saved state does not fit: {key} should be {expected}, found {found}. It "
        "was saved by another problem, other settings or another version: take it up "
        "with those, or start afresh"
    )


def _fits(value: Value, kind: Kind) -> bool:
    if isinstance(kind, type):
        return type(value) is kind
    if not isinstance(value, Tensor):
        return False
    dtype, shape = kind
    if value.dtype != dtype or value.ndim != len(shape):
        return False
    pairs = zip(value.shape, shape, strict=True)
    return all(length is None or found == length for found, length in pairs)


def _kind(value: Value) -> str:
    if isinstance(value, Tensor):
        return _said((value.dtype, tuple(value.shape)))
    return f"{_said(type(value))} ({value!r})"


def _said(kind: Kind) -> str:
    if isinstance(kind, type):
        return f"one {kind.__name__}"
    dtype, shape = kind
    lengths = ", ".join("any" if n is None else str(n) for n in shape)
    return f"a {str(dtype).removeprefix('torch.')} tensor of shape ({lengths})"


def _is_finite(value: Tensor | float) -> bool:
    if isinstance(value, Tensor):
        return bool(torch.isfinite(value).all())
    return math.isfinite(value)


def _infinite(what: str, value: Value) -> FloatingPointError:
    numbers = torch.as_tensor(value)
    count = int((~torch.isfinite(numbers)).sum())
    return FloatingPointError(
        f"{what} is not finite ({count} of {numbers.numel()} numbers), the fit ends "
        "here. Look for extreme observations, variances or starting values; take "
        "float64, or a larger noise. What was saved before is as good as it was"
    )


def _apart(value: Value, seen: set[int]) -> Value:
    """A tensor in memory of its own; every other value as it is."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach().contiguous()
    storage = value.untyped_storage()
    whole = storage.nbytes() == value.numel() * value.element_size()
    if not whole or storage.data_ptr() in seen:
        value = value.clone()
    seen.add(value.untyped_storage().data_ptr())
    return value
