"""A trainer that a test drives: runs the Python that comes line by line on stdin, in one namespace, and answers on stdout.

A process of its own, so that it can be killed, stopped and woken like a real one. Each line in: a JSON string of code. Each line out: JSON
{"value": repr} or {"error": class name, "message": ..., "reason": ..., "ranks": [...], "tag": ...}.
"""

import ast
import json
import sys

namespace = {"__name__": "trainer"}
exec("import os, sys, time, threading, torch, ckptd\ntorch.set_num_threads(1)", namespace)
answers = sys.stdout
sys.stdout = sys.stderr

for line in sys.stdin:
    try:
        tree = ast.parse(json.loads(line))
        value = None
        last = tree.body[-1] if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        if last is not None:
            tree.body.pop()
        exec(compile(tree, "<test>", "exec"), namespace)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<test>", "eval"), namespace)
        try:
            json.dumps(value)
        except TypeError:
            value = repr(value)
        answer = {"value": value}
    except BaseException as error:
        answer = {
            "error": type(error).__name__,
            "bases": [base.__name__ for base in type(error).__mro__],
            "message": str(error),
            "reason": getattr(error, "reason", ""),
            "ranks": list(getattr(error, "ranks", ())),
            "tag": getattr(error, "tag", None),
        }
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
