# SPDX-License-Identifier: Apache-2.0

"""Measure which tests find a bug: ``python -m tests.mutants`` runs them on each mutant.

For each mutant the stages run, cheapest first, until one fails: that one has caught it. The exit status is 1 if there
is a mutant that nothing has caught.
"""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
import queue
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

from tests.mutants import results as measured
from tests.mutants.mutant import Mutant
from tests.mutants.mutants import BY_NAME, MUTANTS
from tests.mutants.results import Result, Results
from tests.mutants.stages import GROUPS, STAGES, Stage, chosen
from tests.mutants.tree import Broken, Stopped, Tree


def measure(tree: Tree, mutant: Mutant, stages: Sequence[Stage], result: Result) -> None:
    """Run the stages that have not seen a mutant yet, until one fails; write the result."""
    with tree.mutated(mutant):
        for stage in stages:
            if stage.name in result.passed:
                continue
            began = time.monotonic()
            runs = stage.runs(tree.root, mutant.file, result.passed)
            test = next(filter(None, (tree.run(stage, paths) for paths in runs)), None)
            result.seconds[stage.name] = round(time.monotonic() - began, 1)
            if test is not None:
                result.caught_by, result.test = stage.name, test
                result.again = tree.fails_again(stage, test)
                return
            result.passed.append(stage.name)


class Harness:
    """A runner of mutants, several at a time.

    :param jobs: how many at a time; each has a copy of the project.
    :param path: where results are kept, or None.
    """

    def __init__(self, stages: Sequence[Stage], jobs: int, path: pathlib.Path | None, results: Results) -> None:
        self._stages = stages
        self._jobs = jobs
        self._path = path
        self.results = results
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix='mutants-'))
        self._trees: list[Tree] = []
        self._threads: list[threading.Thread] = []
        self._ended: queue.Queue[tuple[str, Result] | BaseException | None] = queue.Queue()

    def close(self) -> None:
        """End every process, and remove every copy."""
        for tree in self._trees:
            tree.stop()
        for thread in self._threads:
            thread.join(10.0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def tree(self) -> Tree:
        """Return a new copy."""
        tree = Tree(self._folder / str(len(self._trees)))
        self._trees.append(tree)
        return tree

    def baseline(self) -> bool:
        """Run the stages without a mutant; return whether all of them pass."""
        tree, green = self.tree(), True
        for stage in self._stages:
            began = time.monotonic()
            # Without a mutated file no test is near.
            found = [tree.run(stage, paths) for paths in stage.runs(tree.root, 'migrator/-/-.py', ())]
            test = next(filter(None, found), None)
            green = green and test is None
            print(f'{stage.name}: {test or "passes"}, {time.monotonic() - began:.0f} s', flush=True)
        return green

    def run(self, mutants: Sequence[Mutant]) -> None:
        """Measure mutants.

        :raises Broken: nothing can be measured.
        """
        waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
        for mutant in mutants:
            waiting.put(mutant)
        trees = [self.tree() for _ in range(min(self._jobs, len(mutants)))]
        self._threads = [threading.Thread(target=self._work, args=(tree, waiting), daemon=True) for tree in trees]
        for thread in self._threads:
            thread.start()
        running, done = len(trees), 0
        while running:
            ended = self._ended.get()
            if ended is None:
                running -= 1
            elif isinstance(ended, BaseException):
                raise ended
            else:
                name, result = ended
                done += 1
                self.results[name] = result
                if self._path is not None:
                    measured.write(self._path, self.results)
                stages = [stage.name for stage in self._stages]
                print(f'{done}/{len(mutants)} {measured.line(name, result, stages)}', flush=True)

    def _work(self, tree: Tree, waiting: queue.SimpleQueue[Mutant]) -> None:
        try:
            while True:
                try:
                    mutant = waiting.get_nowait()
                except queue.Empty:
                    break
                result = self.results.get(mutant.name) or Result(mutant.digest)
                measure(tree, mutant, self._stages, result)
                self._ended.put((mutant.name, result))
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 -- the main thread raises it
            self._ended.put(error)
        self._ended.put(None)


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(prog='python -m tests.mutants', description=__doc__)
    parser.add_argument('--only', nargs='+', metavar='NAME', help='measure these mutants, not all')
    names = [*GROUPS, *(stage.name for stage in STAGES)]
    parser.add_argument('--stages', nargs='+', default=['test'], choices=names, help='which stages run (test)')
    parser.add_argument('--jobs', type=int, default=2, help='how many mutants at a time (2)')
    parser.add_argument('--json', type=pathlib.Path, metavar='FILE', help='where results are kept')
    parser.add_argument('--resume', action='store_true', help='keep what is in FILE, and run only what is not')
    parser.add_argument('--list', action='store_true', help='print the mutants and what they break')
    parser.add_argument('--baseline', action='store_true', help='run the stages once without a mutant')
    parser.add_argument('--compare', nargs=2, type=pathlib.Path, metavar='FILE', help='compare two results')
    found = parser.parse_args(argv)
    unknown = set(found.only or ()) - set(BY_NAME)
    if unknown:
        parser.error(f'there is no mutant {sorted(unknown)[0]}: --list prints them all')
    if found.resume and found.json is None:
        parser.error('--resume needs --json: where the earlier results are')
    return found


def known(args: argparse.Namespace) -> Results:
    """Return the results of an earlier run that still hold: of mutants that have not changed since."""
    found = measured.read(args.json) if args.resume else {}
    return {name: one for name, one in found.items() if name in BY_NAME and BY_NAME[name].digest == one.digest}


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    args = arguments(argv)
    if args.list:
        for mutant in MUTANTS:
            print(f'{mutant.name}\n    {mutant.file}: {mutant.breaks}')
        return 0
    if args.compare:
        text, lost = measured.compare(*map(measured.read, args.compare))
        print(text)
        return 1 if lost else 0
    stages = chosen(args.stages)
    for stage in stages:
        if stage.needs is not None and importlib.util.find_spec(stage.needs) is None:
            raise SystemExit(f'stage {stage.name} needs the module {stage.needs}, which is not installed here')
    # Both signals end what runs: the child processes are killed, the copies removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    harness = Harness(stages, args.jobs, args.json, known(args))
    try:
        if args.baseline:
            return 0 if harness.baseline() else 1
        wanted = [BY_NAME[name] for name in args.only] if args.only else MUTANTS
        names = {stage.name for stage in stages}
        left = [one for one in wanted if _is_to_run(harness.results.get(one.name), names)]
        harness.run(left)
        shown = {one.name: harness.results[one.name] for one in wanted}
        print(measured.table(shown, [stage.name for stage in stages]))
        return 1 if any(one.caught_by is None for one in shown.values()) else 0
    except KeyboardInterrupt:
        print('stopped', file=sys.stderr)
        return 130
    except Broken as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        harness.close()


def _is_to_run(result: Result | None, stages: set[str]) -> bool:
    return result is None or (result.caught_by is None and not stages <= set(result.passed))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
