"""A named setting with type, default, range and source: what a user may choose.

Methods (`tff_algos.registry`) and tasks (`tasks.registry`) declare their settings as data with this
one class, so that flags can be defined, checked and explained before TensorFlow is imported, and
the Python interface (`tff_algos.build`, `tasks.load`) applies the very same defaults and checks.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

Value = bool | int | float | str | None

# Counts are 32-bit numbers in TensorFlow's graphs and in seeds.
MAX_INT = 2**31 - 1


class HparamError(ValueError):
    """A setting that is unknown, of the wrong type or out of range; the text is one line."""


@dataclasses.dataclass(frozen=True)
class Hparam:
    """One setting.

    Attributes:
      name: Python name of the setting, e.g. `beta1`.
      default: Value in force where the user gives none. `None` means "not set" and is only for
        settings whose absence has a meaning of its own, which `help` must state.
      help: One or two sentences; names the symbol of the paper.
      source: Where the default comes from (paper and table, reference code, or "choice").
      type: `bool`, `int`, `float` or `str`; taken from the default unless that is `None`.
      minimum: Smallest value allowed (or excluded, see `exclusive_minimum`).
      maximum: Largest value allowed (or excluded, see `exclusive_maximum`); a whole number without
        one is at most `MAX_INT`.
      exclusive_minimum: Whether `minimum` itself is out of range.
      exclusive_maximum: Whether `maximum` itself is out of range.
      choices: The values allowed, for a `str`.
      flag: Name of the flag; `None` means `<owner>_<name>`. Owners that share a flag (the FedOpt
        methods share `--fedopt_variant`) give the same name and must agree in everything else.
      only_with: Name of another setting of the owner, and its values beside which this one means
        something; beside others it must not be set. Its default is then `None`.
    """

    name: str
    default: Value
    help: str
    source: str
    type: Any = None
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False
    exclusive_maximum: bool = False
    choices: Sequence[str] | None = None
    flag: str | None = None
    only_with: tuple[str, Sequence[Value]] | None = None

    def __post_init__(self):
        if self.type is None:
            if self.default is None:
                raise TypeError(f"Hparam {self.name!r} with default None needs an explicit type.")
            object.__setattr__(self, "type", type(self.default))
        if self.only_with and self.default is not None:
            raise TypeError(
                f"Hparam {self.name!r} is not always used, so its default must be None."
            )

    def flag_name(self, owner: str) -> str:
        """Returns the name of the flag under which `owner` (a method or task name) offers it."""
        return self.flag or f"{owner}_{self.name}"

    def describe_range(self) -> str:
        """Returns the values allowed in words, e.g. `in [0, 1)`; empty if anything goes."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.minimum is None and self.maximum is None:
            return ""
        if self.maximum is None:
            return f"{'>' if self.exclusive_minimum else '>='} {self.minimum:g}"
        if self.minimum is None:
            return f"{'<' if self.exclusive_maximum else '<='} {self.maximum:g}"
        low, high = (
            f"{int(v)}" if self.type is int else f"{v:g}" for v in (self.minimum, self.maximum)
        )
        left = "(" if self.exclusive_minimum else "["
        right = ")" if self.exclusive_maximum else "]"
        return f"in {left}{low}, {high}{right}"

    def check(self, value: Value, label: str | None = None) -> Value:
        """Returns `value` in the declared type.

        Args:
          value: The value to check.
          label: How to call the setting in an error, e.g. `--fedadam_beta1`; the name by default.

        Raises:
          HparamError: If the type is wrong or the value is out of range.
        """
        label = label or self.name
        if value is None:
            if self.default is None:
                return None
            raise HparamError(f"{label} must be set to {self._kind()}.")
        if self.type is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, self.type) or (self.type is int and isinstance(value, bool)):
            raise HparamError(f"{label}={_short(repr(value))} must be {self._kind()}.")
        if self.type is str:
            _check_text(value, label)
        allowed = self.describe_range()
        if self.choices and value not in self.choices:
            raise HparamError(f"{label}={_short(value)} must be {allowed}.")
        if self.type is float and not math.isfinite(value):
            raise HparamError(f"{label}={value} must be a finite number.")
        if self.type in (int, float):
            low = self.minimum is not None and (
                value < self.minimum or (self.exclusive_minimum and value == self.minimum)
            )
            high = self.maximum is not None and (
                value > self.maximum or (self.exclusive_maximum and value == self.maximum)
            )
            if low or high:
                raise HparamError(f"{label}={_short(str(value))} must be {allowed}.")
        if self.type is int and abs(value) > max(MAX_INT, self.maximum or 0):
            raise HparamError(f"{label}={_short(str(value))} must be at most {MAX_INT}.")
        return value

    def _kind(self) -> str:
        return {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}[
            self.type
        ]


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]}..."


def _check_text(value, label):
    """Refuses what neither a path nor a JSON file can hold."""
    try:
        value.encode()
    except UnicodeEncodeError as e:
        raise HparamError(f"{label} must be UTF-8, found {_short(ascii(value))}.") from e
    if "\0" in value:
        raise HparamError(f"{label} must not hold a zero byte.")


def resolve(owner: str, hparams: Sequence[Hparam], given: Mapping[str, Any]) -> dict[str, Value]:
    """Returns all settings of `owner`: those `given`, checked, and defaults for the rest.

    Args:
      owner: Name of the method or task, for error texts.
      hparams: What the owner declares.
      given: Setting name to value.

    Raises:
      HparamError: If a name is unknown or a value is refused.
    """
    known = {h.name: h for h in hparams}
    for name in given:
        if name not in known:
            offered = ", ".join(sorted(known)) or "none"
            raise HparamError(f"{owner} has no setting {name!r} (it has: {offered}).")
    values = {
        name: h.check(given[name] if name in given else h.default, f"{owner}: {name}")
        for name, h in known.items()
    }
    for name, h in known.items():
        if h.only_with and values[name] is not None:
            other, allowed = h.only_with
            if values[other] not in allowed:
                beside = " or ".join(f"{other}={value}" for value in allowed)
                raise HparamError(
                    f"{owner}: {name} is used only with {beside}, and {other} is {values[other]}."
                )
    return values
