"""A journal of long loops: what each would need to go on from where it is.

A loop opens a *frame* and exposes a function that tells its state. Frames nest: while
a solver runs inside a step inside a fit, three of them are open. At a *safe point*,
between two steps of the innermost loop, the states of all open frames together say
where the whole run stands; none is computed before it is asked for.

To take a run up again, the same program is run with the state that was saved. Every
frame finds in it what it had exposed, goes on from there, and opens the frames inside
as it did before. What can be computed again, bit by bit the same, is not saved.
"""

from dustmap.journal.frames import Frame, Journal
from dustmap.journal.state import Kind, Pattern, State, like

__all__ = ["Frame", "Journal", "Kind", "Pattern", "State", "like"]
