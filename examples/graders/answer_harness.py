"""Runs inside the sandbox (as `python -I -S -c`), beside the answer, which is in answer.py. Nothing here is secret and
nothing it says is trusted.

Without an argument: runs the answer as a program. With one, the descriptor of a channel: loads the answer as a module
and serves requests in lines of JSON. `{"nonce": ..., "run": source}` runs statements, `{"nonce": ..., "value": source}`
evaluates an expression; the reply repeats the nonce, so that nothing the answer wrote ahead of a request is taken for
its reply, and holds "value", the source of a literal, or "raised".
"""

from __future__ import annotations

import builtins
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # Importing them would take longer than most answers do.
    from collections.abc import Iterable
    from types import CodeType
    from typing import Any

builtins.exit = builtins.quit = sys.exit  # python -S leaves them out, and programs use them.


def compiled(source: str, name: str, mode: str) -> CodeType:
    """Without this file's own `from __future__`."""
    return compile(source, name, mode, dont_inherit=True)


def load(name: str) -> CodeType:
    with open("answer.py", encoding="utf-8") as file:
        return compiled(file.read(), name, "exec")


def serve(descriptor: int) -> None:
    import json
    import os
    import types

    MAX_PARTS, MAX_CHARS = 20_000, 60_000

    class Unsayable(Exception):
        pass

    def is_a(value: Any, module: str, name: str) -> bool:
        """Whether it is an instance of a type whose module only the answer may have loaded."""
        return module in sys.modules and isinstance(value, getattr(sys.modules[module], name))

    def said(value: Any) -> str:
        """The source of a literal that is equal to the value. Only plain data can be said; subclasses are said as what
        they are made of, by the methods of the plain type, whatever they define themselves."""
        parts = 0

        def listed(values: Iterable[object], depth: int) -> str:
            return ", ".join(one(part, depth + 1) for part in values)

        def one(value: Any, depth: int = 0) -> str:
            nonlocal parts
            parts += 1
            if parts > MAX_PARTS or depth > 100:
                raise Unsayable("the value is too large")
            if value is None or value is True or value is False or value is Ellipsis:
                return repr(value)
            if isinstance(value, int):
                return int.__repr__(value)
            if isinstance(value, float):
                if value != value:
                    return "_nan"
                return float.__repr__(value) if abs(value) != float("inf") else ("_inf" if value > 0 else "-_inf")
            if isinstance(value, complex):
                return f"_complex({one(value.real, depth)}, {one(value.imag, depth)})"
            if isinstance(value, str):
                return str.__repr__(str.__str__(value))
            if isinstance(value, bytes):
                return bytes.__repr__(value)
            if isinstance(value, tuple):
                return "(" + listed(tuple.__iter__(value), depth) + ("," if tuple.__len__(value) == 1 else "") + ")"
            if isinstance(value, list):
                return "[" + listed(list.__iter__(value), depth) + "]"
            if isinstance(value, dict):
                return (
                    "{"
                    + ", ".join(f"{one(key, depth + 1)}: {one(held, depth + 1)}" for key, held in dict.items(value))
                    + "}"
                )
            if isinstance(value, set):
                return "{" + listed(set.__iter__(value), depth) + "}" if set.__len__(value) else "set()"
            if isinstance(value, frozenset):
                return "frozenset([" + listed(frozenset.__iter__(value), depth) + "])"
            if is_a(value, "collections", "deque"):
                return "_deque([" + listed(list(value), depth) + "])"
            if isinstance(value, range):
                return f"range({value.start}, {value.stop}, {value.step})"
            if is_a(value, "decimal", "Decimal"):
                return f"_Decimal({str(value)!r})"
            if is_a(value, "fractions", "Fraction"):
                return f"_Fraction({int(value.numerator)}, {int(value.denominator)})"
            if isinstance(value, type({}.keys())):
                return "{" + listed(value, depth) + "}" if len(value) else "set()"
            if hasattr(type(value), "__next__"):
                held = []
                for part in value:
                    held.append(part)
                    if len(held) > MAX_PARTS:
                        raise Unsayable("the iterator does not end")
                return "iter([" + listed(held, depth) + "])"
            raise Unsayable(f"a value of type {type(value).__name__} cannot be compared from outside")

        text = one(value)
        if len(text) > MAX_CHARS:
            raise Unsayable("the value is too large")
        return text

    def problem(error: BaseException) -> str:
        return f"{type(error).__name__}: {error}"[:300]

    channel_in, channel_out = (
        os.fdopen(os.dup(descriptor), "r", encoding="utf-8"),
        os.fdopen(descriptor, "w", encoding="utf-8"),
    )

    def tell(what: dict[str, object]) -> None:
        channel_out.write(json.dumps(what) + "\n")
        channel_out.flush()

    module = types.ModuleType("answer")
    sys.modules["answer"] = module
    names = module.__dict__
    exec(compiled(json.loads(channel_in.readline())["setup"], "setup", "exec"), names)
    try:
        exec(load("answer.py"), names)
    except SystemExit:
        pass  # A script's own last line; what it defined before is there.
    except BaseException as error:
        tell({"raised": problem(error)})
        return
    tell({"ready": True})
    for line in channel_in:
        request = json.loads(line)
        reply = {"nonce": request["nonce"]}
        try:
            if "run" in request:
                exec(compiled(request["run"], "test", "exec"), names)
            elif "truth" in request:
                reply["value"] = repr(bool(eval(compiled(request["truth"], "test", "eval"), names)))
            else:
                reply["value"] = said(eval(compiled(request["value"], "test", "eval"), names))
        except BaseException as error:
            reply["raised"] = problem(error)
        tell(reply)


if len(sys.argv) > 1:
    serve(int(sys.argv.pop()))
else:
    program = load("answer.py")
    sys.argv = ["answer.py"]
    del annotations, builtins, compiled, load, serve, TYPE_CHECKING
    exec(program, globals())
