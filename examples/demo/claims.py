"""Claims, what was measured of each, and whether it held."""

from __future__ import annotations

import textwrap
from typing import List, Tuple


class Claims:
    def __init__(self) -> None:
        self._rows: List[Tuple[str, str, bool]] = []

    def check(self, claim: str, measured: str, held: bool) -> bool:
        """Prints and remembers a claim. Returns `held`."""
        self._rows.append((claim, measured, held))
        print(f"  {'PASS' if held else 'FAIL'}  {claim}: {measured}", flush=True)
        return held

    def held(self) -> bool:
        """True if all claims held, and there was at least one."""
        return bool(self._rows) and all(held for _, _, held in self._rows)

    def table(self) -> str:
        lines = [f"{'claim':<58}  {'measured':<52}"]
        lines.append("-" * 118)
        for claim, measured, held in self._rows:
            left, right = textwrap.wrap(claim, 58), textwrap.wrap(measured, 52)
            for i in range(max(len(left), len(right))):
                a = left[i] if i < len(left) else ""
                b = right[i] if i < len(right) else ""
                lines.append(f"{a:<58}  {b:<52}  {('PASS' if held else 'FAIL') if i == 0 else ''}".rstrip())
        return "\n".join(lines)
