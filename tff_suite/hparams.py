"""A named setting with type, default, range and source, for the user to choose.

Methods (`tff_algos.registry`) and tasks (`tasks.registry`) declare their settings as data with this
one class. So flags are defined, checked and explained before TensorFlow is imported. The Python
interface (`tff_algos.build`, `tasks.load`) applies the same defaults and checks.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tff_suite.errors import FedError

Value = bool | int | float | str | None
# Settings by name, once resolved. What type a value has is said by its `Hparam` alone.
Settings = Mapping[str, Any]

# Counts are 32-bit numbers in TensorFlow's graphs and in seeds.
MAX_INT = 2**31 - 1
# A seed is one word of NumPy's `SeedSequence`.
MAX_SEED = 2**32 - 1


class HparamError(FedError, ValueError):
    """A setting that is unknown, of the wrong type or out of range; the message is one line."""

    exit_code = 2


class _NotUsed:
    """The default of a setting that is not used with the others; it must not be set then."""

    def __repr__(self) -> str:
        return "NOT_USED"


NOT_USED = _NotUsed()


@dataclasses.dataclass(frozen=True)
class By:
    """A default that depends on another setting of the same owner.

    `By("partition", {"dirichlet": 0.01})` is 0.01 with `partition=dirichlet`. With any other
    partition the setting is not used: it is `None`, and setting it is an error. `By("profile",
    {"paper": 0, "released": 6})` has a default in every case.

    Attributes:
      setting: Name of the other setting.
      cases: Its values, and the default with each; `NOT_USED` if the setting is not used with it.
      otherwise: The default with its other values.
    """

    setting: str
    cases: Mapping[Value, Any]
    otherwise: Any = NOT_USED

    def of(self, value: Value) -> Any:
        """Returns the default for a value of the other setting."""
        return self.cases.get(value, self.otherwise)

    def values(self) -> list[Value]:
        """Returns the possible defaults."""
        return [v for v in (*self.cases.values(), self.otherwise) if v is not NOT_USED]

    def describe(self) -> str:
        """Returns a description of the defaults and their conditions."""
        cases: dict[Any, list[Value]] = {}
        for case, default in self.cases.items():
            cases.setdefault(default, []).append(case)
        unused = cases.pop(NOT_USED, [])
        parts = [f"{_shown(default)} with {self._beside(some)}" for default, some in cases.items()]
        if unused:
            parts.append(f"not used with {self._beside(unused)}")
        if self.otherwise is not NOT_USED:
            other = _shown(self.otherwise)
            parts = [*parts, f"{other} otherwise"] if cases else [other, *parts]
        elif not unused and len(cases.keys() - {None}) <= 1:
            parts.append("else not used")
        return ", ".join(parts)

    def _beside(self, cases: Sequence[Value]) -> str:
        *others, last = map(str, cases)
        return f"{self.setting}={', '.join(others)}{' or ' if others else ''}{last}"


def _shown(default: Value) -> str:
    return "unset" if default is None else str(default)


@dataclasses.dataclass(frozen=True)
class Hparam:
    """One setting.

    Attributes:
      name: Python name of the setting, e.g. `beta1`; `lambda_` for a name that is a Python keyword.
      default: Value in force if the user gives none, or a `By` if it depends on another setting.
        `None` means "not set". It is only for settings whose absence has its own meaning, which
        `help` must state.
      help: One or two sentences; names the symbol of the paper.
      source: Where the default comes from (paper and table, reference code, or "choice").
      type: `bool`, `int`, `float` or `str`; taken from the default unless that is `None`.
      minimum: Smallest value allowed (or excluded, see `exclusive_minimum`).
      maximum: Largest value allowed (or excluded, see `exclusive_maximum`); a whole number without
        one is at most `MAX_INT`.
      exclusive_minimum: Whether `minimum` itself is out of range.
      exclusive_maximum: Whether `maximum` itself is out of range.
      choices: The values allowed, for a `str`.
      flag: Name of the flag; `None` means `<owner>_<name>`, without the trailing underscore of
        names such as `lambda_`. Owners that share a flag (the FedOpt methods share
        `--fedopt_variant`) give the same name and must agree in everything else.
      word: A text that is allowed instead of a number.
    """

    name: str
    default: Value | By
    help: str
    source: str
    type: Any = None
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False
    exclusive_maximum: bool = False
    choices: Sequence[str] | None = None
    flag: str | None = None
    word: str | None = None

    def __post_init__(self) -> None:
        if self.type is None:
            defaults = self.default.values() if isinstance(self.default, By) else [self.default]
            types = {type(d) for d in defaults if d is not None}
            if len(types) != 1:
                raise TypeError(f"Hparam {self.name!r} with default None needs an explicit type.")
            object.__setattr__(self, "type", types.pop())

    def describe_default(self) -> str:
        """Returns a description of the default, with its conditions."""
        return self.default.describe() if isinstance(self.default, By) else _shown(self.default)

    def is_used(self, settings: Settings) -> bool:
        """Returns whether the setting is used with the owner's other settings."""
        by = self.default
        return not isinstance(by, By) or by.of(settings[by.setting]) is not NOT_USED

    def flag_name(self, owner: str) -> str:
        """Returns the name of the flag under which `owner` (a method or task name) offers it."""
        return self.flag or f"{owner}_{self.name.removesuffix('_')}"

    def describe_range(self) -> str:
        """Returns a description of the allowed values, e.g. `in [0, 1)`; empty for any value."""
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
          label: Name of the setting in an error, e.g. `--fedadam_beta1`; by default `name`.

        Raises:
          HparamError: If the type is wrong or the value is out of range.
        """
        label = label or self.name
        if self.word is not None and value == self.word:
            return value
        if value is None:
            # A default by case may be that the setting is not used.
            if self.default is None or isinstance(self.default, By):
                return None
            raise HparamError(f"{label} must be set to {self._kind()}.")
        if self.type is float and isinstance(value, int) and not isinstance(value, bool):
            try:
                value = float(value)
            except OverflowError as e:
                raise HparamError(f"{label} must be a smaller number.") from e
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


def _check_text(value: str, label: str) -> None:
    """Refuses text that neither a path nor a JSON file can hold."""
    try:
        value.encode()
    except UnicodeEncodeError as e:
        raise HparamError(f"{label} must be UTF-8, found {_short(ascii(value))}.") from e
    if "\0" in value:
        raise HparamError(f"{label} must not contain a zero byte.")


def resolve(owner: str, hparams: Sequence[Hparam], given: Settings) -> dict[str, Any]:
    """Returns all settings of `owner`: those `given`, checked, and defaults for the rest.

    Args:
      owner: Name of the method or task, for error messages.
      hparams: The owner's settings.
      given: Setting name → value; `None` means not given.

    Returns:
      Setting name → value; `None` for a setting that is not used with the others.

    Raises:
      HparamError: If a name is unknown, a value is refused, or a given setting is not used.
    """
    known = {h.name: h for h in hparams}
    for name in given:
        if name not in known:
            offered = ", ".join(sorted(known)) or "none"
            raise HparamError(f"{owner} has no setting {name!r} (it has: {offered}).")
    values: dict[str, Value] = {}

    def value_of(name: str) -> Value:
        if name not in values:
            h, value = known[name], given.get(name)
            if isinstance(h.default, By):
                other = value_of(h.default.setting)
                default = h.default.of(other)
                if default is NOT_USED and value is not None:
                    raise HparamError(
                        f"{owner}: {name} is not used with {h.default.setting}={_shown(other)} "
                        f"(its default: {h.describe_default()})."
                    )
                value = value if value is not None else None if default is NOT_USED else default
            elif value is None:
                value = h.default
            values[name] = h.check(value, f"{owner}: {name}")
        return values[name]

    return {name: value_of(name) for name in known}
