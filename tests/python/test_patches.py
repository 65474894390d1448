"""What an adapter replaces in a framework, and that all of it is put back."""

import sys
import types
from typing import Any

import pytest
from ckptd._patches import Patches


class Framework:
    def method(self, number: int) -> int:
        return number

    @staticmethod
    def function(number: int) -> int:
        return number


def doubled(stock: Any, *arguments: Any) -> Any:
    return 2 * stock(*arguments)


def test_wrapped_methods_get_the_stock_one_and_are_put_back() -> None:
    before = dict(vars(Framework))
    patches = Patches()
    assert not patches
    patches.wrap(Framework, "method", doubled)
    patches.wrap(Framework, "function", doubled)
    assert patches
    assert (Framework().method(3), Framework.function(4), Framework().function(5)) == (6, 8, 10)
    assert patches.stock(Framework, "method") is before["method"]
    patches.restore()
    patches.restore()
    assert (dict(vars(Framework)), bool(patches)) == (before, False)


def test_function_is_replaced_in_every_module_that_has_it_under_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def stock() -> str:
        return "stock"

    modules = {name: types.ModuleType(name) for name in ("framework_of_test", "library_of_test")}
    modules["framework_of_test"].save, modules["library_of_test"].save_state = stock, stock  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    with Patches() as patches:
        patches.replace_everywhere({stock: lambda: "ours"})
        assert modules["framework_of_test"].save() == "ours"
        assert modules["library_of_test"].save_state() == "ours"
        assert patches.stock(modules["framework_of_test"], "save") is stock
    assert (modules["framework_of_test"].save(), modules["library_of_test"].save_state()) == ("stock", "stock")


def test_attribute_that_is_not_there_is_not_replaced() -> None:
    patches = Patches()
    with pytest.raises(AttributeError):
        patches.replace(Framework, "absent", doubled)
    assert not patches and not hasattr(Framework, "absent")
