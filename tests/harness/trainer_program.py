"""A trainer that a test drives: reads Python code from stdin, runs it in one namespace, and answers on stdout.

It is a process of its own, so that a test can kill, stop and continue it. Each line of input is a JSON string of code. Each line of
output is JSON: {"value": repr} or {"error": class name, "bases": [...], "message": ..., "reason": ..., "ranks": [...], "tag": ...}.
"""

import ast
import ctypes
import json
import os
import sys


def imports():
    """The namespace in which the code runs."""
    namespace = {"__name__": "trainer"}
    exec("import os, sys, time, threading, ckptd", namespace)
    if os.environ.get("CKPTD_TEST_TORCH") != "no":  # It takes seconds to import.
        exec("import torch\ntorch.set_num_threads(1)", namespace)
    exec(os.environ.get("CKPTD_TEST_IMPORTS", ""), namespace)
    return namespace


def run(namespace):
    if "CKPTD_TEST_MOUNT_NAMESPACE" in os.environ:  # As in a container.
        if ctypes.CDLL(None, use_errno=True).unshare(0x00020000) != 0:  # CLONE_NEWNS
            raise OSError(ctypes.get_errno(), "unshare")
    if "CKPTD_TEST_UID" in os.environ:  # After the imports: that user may not be able to read the modules.
        uid = int(os.environ["CKPTD_TEST_UID"])
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: otherwise its /proc would belong to root.
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


if __name__ == "__main__":
    run(imports())
