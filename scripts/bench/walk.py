"""Which files a command of the library walks through, and the longest chain of imports.

    python scripts/bench/walk.py [--stars 600] [--root .]

A call is recorded (`sys.setprofile`, in all threads) if its function belongs to
``dustmap`` or ``pipelines``; its caller is the nearest such frame below it. An arrow is
a pair of files, the caller's and the callee's; a mutual pair has both directions. The
deepest stack is the largest number of such frames at once, and of files at once.
"""

from __future__ import annotations

import argparse
import ast
import functools
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

PACKAGES = ("dustmap", "pipelines")


class Walk:
    """The calls of the library's functions between `start` and `stop`."""

    def __init__(self, root: Path) -> None:
        self.heads = tuple(f"{root / package}/" for package in PACKAGES)
        self.functions: set[Any] = set()
        self.arrows: set[tuple[str, str]] = set()
        self.frames = 0
        self.deep = 0

    def __enter__(self) -> Walk:
        threading.setprofile(self._record)
        sys.setprofile(self._record)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _record(self, frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        # Modules and bodies of classes run on import, which is no call.
        if event != "call" or code.co_name == "<module>" or not self._own(code):
            return
        if not code.co_name.startswith("<"):  # comprehensions, lambdas
            self.functions.add(code)
        stack, below = [code.co_filename], frame.f_back
        while below is not None:
            if self._own(below.f_code):
                if below.f_code.co_name == "<module>":
                    return
                stack.append(below.f_code.co_filename)
            below = below.f_back
        if len(stack) > 1 and stack[0] != stack[1]:
            self.arrows.add((stack[1], stack[0]))
        self.frames = max(self.frames, len(stack))
        self.deep = max(self.deep, len(set(stack)))

    @functools.cache  # noqa: B019
    def _own(self, code: Any) -> bool:
        return code.co_filename.startswith(self.heads)

    def row(self) -> str:
        files = {code.co_filename for code in self.functions}
        mutual = sum((b, a) in self.arrows for a, b in self.arrows) // 2
        return (
            f"{len(files):5} {len(self.functions):9} {len(self.arrows):6} {mutual:6} "
            f"{self.frames:6} {self.deep:5}"
        )


def imports(root: Path, *, inside: bool) -> dict[str, set[str]]:
    """Return the library's modules and those they import; ``inside`` functions too."""
    paths = [p for package in PACKAGES for p in (root / package).rglob("*.py")]
    names = {
        ".".join(p.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): p
        for p in paths
    }
    found: dict[str, set[str]] = {}
    for name, path in names.items():
        found[name] = set()
        for node in _statements(ast.parse(path.read_text()), inside):
            if isinstance(node, ast.ImportFrom) and node.module:
                parts = [f"{node.module}.{one.name}" for one in node.names]
                found[name] |= {p if p in names else node.module for p in parts}
            elif isinstance(node, ast.Import):
                found[name] |= {one.name for one in node.names}
        found[name] = (found[name] & set(names)) - {name}
    return found


def _statements(node: ast.AST, inside: bool) -> Any:
    for child in ast.iter_child_nodes(node):
        typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(
            child.test
        )
        function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        if typing_only or (function and not inside):
            continue
        yield child
        yield from _statements(child, inside)


def longest_chain(graph: dict[str, set[str]]) -> list[str]:
    """Return the longest path in a graph, each module once; circles are cut."""
    best: dict[str, list[str]] = {}

    def chain(name: str, above: tuple[str, ...]) -> list[str]:
        if name not in best:
            below = [
                chain(other, (*above, name))
                for other in sorted(graph[name])
                if other not in above and other != name
            ]
            best[name] = [name, *max(below, key=len, default=[])]
        return best[name]

    return max((chain(name, ()) for name in graph), key=len)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stars", type=int, default=600)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[2])
    options = parser.parse_args()
    root = options.root.resolve()
    sys.path.insert(0, str(root))
    from pipelines.cli import main as command

    def run(*arguments: object) -> Walk:
        walk = Walk(root)
        with walk:
            command([str(one) for one in arguments], standalone_mode=False)
        return walk

    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        stars, fitted, store = (
            Path(folder) / n for n in ("s.parquet", "run", "m.zarr")
        )
        command(
            [
                "simulate",
                "-o",
                str(stars),
                "--stars",
                str(options.stars),
                "--seed",
                "1",
            ],
            standalone_mode=False,
        )
        rows["fit"] = run("fit", stars, "-o", fitted)
        command(["export", str(fitted), "--zarr", str(store)], standalone_mode=False)
        place = ("--l", 90, "--b", 5, "--distance", 400)
        rows["query of a run"] = run("query", fitted, *place)
        rows["query of a store"] = run("query", store, *place)
    print(f"{'':18} files functions arrows mutual frames files in the deepest stacks")
    for name, walk in rows.items():
        print(f"{name:18} {walk.row()}")
    for inside in (False, True):
        chain = longest_chain(imports(root, inside=inside))
        where = " with those inside functions" if inside else ""
        print(f"longest chain of imports{where}: {len(chain)}")
        print("  " + " > ".join(chain))


if __name__ == "__main__":
    main()
