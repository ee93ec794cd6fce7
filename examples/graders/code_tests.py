"""Tests of code, taken apart so that the answer's process only computes values and never judges.

`assert CALL == LITERAL` in the answer's own process proves little: the answer can end the process with status 0, print
what a passing test prints, or return an object that is equal to everything. So a test is split. What involves the
answer (`f(1)` in `assert abs(f(1) - 2.5) < 1e-6`) is a *unit*: it is evaluated beside the answer and its value comes
back as plain data. The rest, with the value in its place (`abs(2.4999999 - 2.5) < 1e-6`), is evaluated where the answer
never was. To pass, an answer must produce values that it is never shown.
"""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from dataclasses import dataclass
from typing import Any

# Modules that tests may use as `math.isclose(...)` without importing them.
OFFERED_MODULES = frozenset(
    ("bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "itertools")
    + ("json", "math", "operator", "random", "re", "statistics", "string")
)
# What a value that came back may be written with, beside literals; how the clean process knows these names.
VALUE_CALLS = frozenset({"set", "frozenset", "range", "iter", "_complex", "_deque", "_Decimal", "_Fraction"})
VALUE_NAMES = frozenset({"_inf", "_nan"})
VALUE_SETUP = (
    "from collections import deque as _deque\n"
    "from decimal import Decimal as _Decimal\n"
    "from fractions import Fraction as _Fraction\n"
    "_complex, _inf, _nan = complex, float('inf'), float('nan')\n"
)
UNIT = "_unit_"
BUILTINS = frozenset(dir(builtins))
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class BadTests(Exception):
    """The tests cannot be used, whatever the answer is."""


class BadValue(Exception):
    """What came back from the answer's process is no plain data."""


@dataclass(frozen=True)
class Step:
    """`run`: statements for the answer's process alone. `check`: `units`, sources to evaluate there in turn, and
    `rest`, the test around their values. `trust`: statements with assertions that cannot be split, judged, where that
    is allowed, by the answer's own process."""

    kind: str
    source: str
    units: tuple[str, ...] = ()
    rest: ast.expr | None = None


@dataclass(frozen=True)
class Plan:
    """`setup` is run in both processes, before the answer."""

    setup: str
    steps: tuple[Step, ...]


def plan(tests: list[str], setup: str = "", trusting: bool = False) -> Plan:
    """Takes tests apart. Without `trusting`, tests that cannot be split are `BadTests`."""
    setup_body = _parsed(setup, "the setup")
    body = [statement for number, test in enumerate(tests) for statement in _parsed(test, f"test {number}")]
    body = _inlined(body)
    used = {node.id for statement in setup_body + body for node in ast.walk(statement) if isinstance(node, ast.Name)}
    offered = [ast.Import([ast.alias(name)]) for name in sorted(used & OFFERED_MODULES)]
    # Names that mean the same in a process where the answer never was.
    known = {name for statement in offered + setup_body for name in _bound(statement)}
    common: list[ast.stmt] = offered + setup_body
    rest: list[ast.stmt] = []
    for statement in body:
        is_import = isinstance(statement, (ast.Import, ast.ImportFrom))
        is_helper = isinstance(statement, FUNCTIONS) and not _asserts(statement) and not _foreign(statement, known)
        if is_import or is_helper:
            common.append(statement)
            known |= _bound(statement)
        else:
            rest.append(statement)

    # Data that the tests define once, `expected = [1, 2]`, is known as long as the answer is never handed it.
    times = Counter(name for statement in rest for name in _bound(statement))
    once = {name for name, count in times.items() if count == 1}
    given: list[ast.stmt] = [
        one for one in rest if isinstance(one, ast.Assign) and _bound(one) <= once and not _foreign(one, known | once)
    ]
    while True:
        data = {name for statement in given for name in _bound(statement)}
        steps, handed = _steps([one for one in rest if one not in given], known | data, _all_bound(rest), trusting)
        kept = [one for one in given if not (_bound(one) & handed) and not _foreign(one, known | data)]
        if len(kept) == len(given):
            break
        given = kept
    if not any(step.kind in ("check", "trust") for step in steps):
        raise BadTests("no test uses the answer")
    return Plan(_source(common + given), tuple(steps))


def _steps(body: list[ast.stmt], known: set[str], data: set[str], trusting: bool) -> tuple[list[Step], set[str]]:
    """The steps, and the names that what runs beside the answer mentions."""
    steps: list[Step] = []
    handed: set[str] = set()

    def mentions(node: ast.AST) -> set[str]:
        return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}

    for statement in body:
        if isinstance(statement, ast.Assert):
            units: list[ast.expr] = []
            rest = _Lift(known, data, units).visit(statement.test)
            if not units:
                # The answer may be a function named like a builtin; asked for in its process, it is found if it is
                # there.
                rest = _Lift(known - BUILTINS, data, units, builtins_known=False).visit(statement.test)
            if units:
                handed |= {name for unit in units for name in mentions(unit)}
                steps.append(
                    Step("check", ast.unparse(statement.test), tuple(ast.unparse(unit) for unit in units), rest)
                )
        elif _asserts(statement):
            if not trusting:
                shown = ast.unparse(statement).partition("\n")[0]
                raise BadTests(
                    f"`{shown}` holds assertions that cannot be split from the answer; write them as plain asserts, or "
                    'let the answer\'s own process judge them with "in_process": true'
                )
            handed |= mentions(statement)
            steps.append(Step("trust", ast.unparse(statement)))
        else:
            handed |= mentions(statement)
            steps.append(Step("run", ast.unparse(statement)))
    return steps, handed


class _Lift(ast.NodeTransformer):
    """Replaces every part that involves the answer by a name, and collects the parts.

    Operators, displays and calls of known functions stay outside, with their operands lifted: `abs(f(2) - 1.41) < 1e-6`
    must not be left to an object that makes any difference 0. Everything else that mentions the answer is a unit as a
    whole.
    """

    def __init__(self, known: set[str], data: set[str], units: list[ast.expr], builtins_known: bool = True) -> None:
        self.known = known | BUILTINS if builtins_known else known
        self.data = data
        self.units = units

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, ast.expr):
            return self.generic_visit(node)
        if not self._mentions(node):
            return node
        if isinstance(node, (ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Tuple, ast.List, ast.Set, ast.Dict)):
            return self.generic_visit(_copy(node))
        if isinstance(node, ast.Call) and not self._mentions(node.func) and not self._hands_over_code(node):
            return self.generic_visit(_copy(node))
        self.units.append(node)
        return ast.Name(f"{UNIT}{len(self.units) - 1}", ast.Load())

    def _mentions(self, node: ast.AST) -> bool:
        inside = {name for part in ast.walk(node) for name in _targets(part)}
        return any(
            isinstance(part, ast.Name) and part.id not in self.known and part.id not in inside
            for part in ast.walk(node)
        )

    def _hands_over_code(self, call: ast.Call) -> bool:
        """`map(f, xs)` with a function of the answer's, which cannot come back as data."""
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
            is_function = (
                isinstance(argument, ast.Name) and argument.id not in self.known and argument.id not in self.data
            )
            if is_function or (isinstance(argument, (ast.Lambda, ast.Starred)) and self._mentions(argument)):
                return True
        return False


def settle(step: Step, values: list[str]) -> bool | str:
    """The verdict of a check with its units' values where it needs no evaluation, or the expression that decides it.

    A value is untrusted text. Raises `BadValue` where it is not the source of plain data.
    """
    assert step.rest is not None
    nodes = [_value(text) for text in values]
    try:
        filled = _Fill(nodes).visit(_copy(step.rest))
        decided = _decided(filled)
        return ast.unparse(filled) if decided is None else decided
    except (RecursionError, MemoryError):
        raise BadValue("the value is nested too deeply") from None


class _Fill(ast.NodeTransformer):
    def __init__(self, nodes: list[ast.expr]) -> None:
        self.nodes = nodes

    def visit_Name(self, node: ast.Name) -> ast.expr:
        number = node.id.removeprefix(UNIT)
        return self.nodes[int(number)] if number != node.id and number.isdigit() else node


def _decided(test: ast.expr) -> bool | None:
    """The truth of the commonest tests, whose both sides are literals: nobody needs to evaluate those."""
    try:
        if not isinstance(test, ast.Compare):
            return bool(ast.literal_eval(test))
        if len(test.ops) != 1:
            return None
        left, right = ast.literal_eval(test.left), ast.literal_eval(test.comparators[0])
        same_one = left is right if any(one is None or one is True or one is False for one in (left, right)) else None
        match test.ops[0]:
            case ast.Eq():
                return bool(left == right)
            case ast.NotEq():
                return bool(left != right)
            case ast.Is():
                return same_one
            case ast.IsNot():
                return None if same_one is None else not same_one
    except (ValueError, TypeError, SyntaxError):
        pass
    return None


def _value(text: str) -> ast.expr:
    """The parsed source of a value, if it is nothing but plain data."""
    try:
        node = ast.parse(text, mode="eval").body
        if not _is_plain(node):
            raise BadValue("the answer's process sent back something other than plain data")
        return node
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise BadValue("the answer's process sent back something that cannot be read") from None


def _is_plain(node: ast.AST | None) -> bool:
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            return name in VALUE_NAMES
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_plain(operand)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return all(map(_is_plain, parts))
        case ast.Dict(keys=keys, values=held):
            return all(map(_is_plain, keys)) and all(map(_is_plain, held))
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]):
            return name in VALUE_CALLS and all(map(_is_plain, parts))
    return False


def _inlined(body: list[ast.stmt]) -> list[ast.stmt]:
    """HumanEval's form, `def check(candidate): ...` and `check(f)`: the function's statements where it is called."""
    checks = {one.name: one for one in body if isinstance(one, ast.FunctionDef) and _asserts(one)}
    made: list[ast.stmt] = []
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) if name in checks:
                continue
            case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=[ast.Name(id=given)], keywords=[])) if (
                name in checks
            ):
                function = checks[name]
                if len(function.args.args) != 1 or any(isinstance(one, ast.Return) for one in ast.walk(function)):
                    raise BadTests(f"`{name}` must take one argument and return nothing")
                renamed = _Rename(function.args.args[0].arg, given)
                made += [renamed.visit(_copy(one)) for one in function.body]
            case _:
                made.append(statement)
    return made


class _Rename(ast.NodeTransformer):
    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.new, node.ctx) if node.id == self.old else node


def _parsed(source: str, what: str) -> list[ast.stmt]:
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadTests(f"{what} is no Python: {error}") from None


def _source(body: list[ast.stmt]) -> str:
    return ast.unparse(ast.fix_missing_locations(ast.Module(body, [])))


def _copy(node: Any) -> Any:
    """A deep copy: tests are filled in many times."""
    if isinstance(node, ast.AST):
        return type(node)(**{name: _copy(getattr(node, name, None)) for name in (*node._fields, *node._attributes)})
    return [_copy(one) for one in node] if isinstance(node, list) else node


def _asserts(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Assert) for node in ast.walk(statement))


def _targets(node: ast.AST) -> set[str]:
    """Names that this very node binds."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return {name}
        case ast.alias(name=name, asname=alias):
            return {alias or name.partition(".")[0]}
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
    return set()


def _bound(statement: ast.stmt) -> set[str]:
    """Names that a statement binds where it stands, not inside a function of its own."""
    if isinstance(statement, FUNCTIONS):
        return {statement.name}
    return {name for node in ast.walk(statement) for name in _targets(node)}


def _all_bound(body: list[ast.stmt]) -> set[str]:
    return {name for statement in body for name in _bound(statement)}


def _foreign(statement: ast.stmt, known: set[str]) -> set[str]:
    """Names that a statement takes from elsewhere and that are not known: the answer's."""
    inside = {name for node in ast.walk(statement) for name in _targets(node)}
    used = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return used - inside - known - BUILTINS
