"""Settings that mean something only beside a certain value of another setting."""

from typing import Any

from hparams import HparamError


def only_with(task: str, condition: str, applies: bool, **defaults_and_values: tuple[Any, Any]):
    """Fills in settings that apply and refuses those that do not.

    Args:
      task: Name of the task, for the error text.
      condition: The condition in words, e.g. `partition=dirichlet`.
      applies: Whether it holds.
      **defaults_and_values: For each setting the value given (`None` if it was not) and the
        default that is in force if the condition holds.

    Returns:
      Values by setting: with the defaults filled in if the condition holds, else all `None`.

    Raises:
      HparamError: If a setting was given although the condition does not hold.
    """
    filled = {}
    for name, (value, default) in defaults_and_values.items():
        if value is not None and not applies:
            raise HparamError(f"{task}: {name} is used only with {condition}.")
        filled[name] = default if applies and value is None else value
    return filled
