"""The identity of a run besides its settings: versions, code, values, model and data.

It is recorded in hparams.json as `identity`, so that a later start can say what differs:

    method, task   version, an integer of the `SPEC`
    code           my_task.py → load() → digest of the syntax tree, see `tff_suite.code_digests`
    suite          the suite's files that method and task import, and which of them git reports as
                   modified or untracked: those are compared like the user's own code
    values         attributes and constants of loss, metrics and model function:
                   `loss, factor` → `2.0`
    model          layers with their settings, wiring and initial weights, unless the model is the
                   suite's own
    data           one digest, and the numbers of clients and examples
    own_functions  `the evaluator norm` → digest of its code and values; callbacks likewise

The suite's own unmodified methods and tasks are compared by their versions only.
"""

import collections
import functools
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import tasks
import tff_algos
from simulation import assembly, model_identity, runtimes, task_models
from simulation.experiment_flags import Request
from simulation.records import outputs
from tasks import fingerprint
from tasks import task as task_lib
from tasks.task import Task
from tff_suite import code_digests, code_places, code_texts, imports, specs
from tff_suite.errors import FedError

_MOST_TOLD = 4
_SECONDS_OF_A_LOOK = 5.0
# How the name of an own function begins if it is a callback, not an evaluator.
CALLBACK = "the callback "


class Change(NamedTuple):
    """A difference between the recorded identity of a run and the current one.

    Attributes:
      kind: `method`, `task`, `code`, `values`, `model` or `data`.
      text: What differs, e.g. `model: layer 1 (dense), units 32 → 64`.
    """

    kind: str
    text: str


class Looked(NamedTuple):
    """An identity that was determined without starting a run.

    Attributes:
      identity: The current identity; parts that cannot differ are left out.
      data: Digests of the data, `None` if these were not read.
      unread: Why data and model could not be loaded; empty if they were, or need not be.
    """

    identity: dict[str, Any]
    data: Mapping[str, str] | None
    unread: str


def look(
    request: Request,
    before: Mapping[str, Any],
    known: MutableMapping[str, Looked] | None = None,
) -> Looked:
    """Returns the identity that a run would have now; loads only what can be compared.

    Args:
      request: The settings.
      before: The recorded identity.
      known: A cache of results for tasks, kept between calls.
    """
    if not loads(request, before):
        return Looked(_joined(of_method(request), of_task(request)), None, "")
    key = json.dumps([request.run[name] for name in _OF_TASKS] + [request.task], sort_keys=True)
    if known is not None and key in known:
        found = known[key]
    else:
        found = _look_at_task(request, before)
        if known is not None:
            known[key] = found
    now = _joined(of_method(request), found.identity)
    if found.unread:
        # Without the loaded task, the parts that depend on it are taken to be unchanged.
        for part in ("code", "values"):
            now[part] = {**before.get(part, {}), **now[part]}
    return found._replace(identity=now)


# Settings on which the loaded task depends.
_OF_TASKS = (
    "task",
    "seed",
    "data_dir",
    "use_synthetic_data",
    "initial_weights",
    "precision",
    "clients_per_round",
)


def loads(request: Request, before: Mapping[str, Any]) -> bool:
    """Returns whether `look` has to load the task.

    The version suffices for the suite's own tasks that read no files. The data of other tasks have
    to be read, and the user's own models to be built.

    Args:
      request: The settings.
      before: The recorded identity.
    """
    settings = request.run
    if not before.keys() & {"data", "model"}:
        return False
    if _builds(request) or settings["initial_weights"] is not None:
        return True
    return tasks.get(settings["task"]).needs_data and not settings["use_synthetic_data"]


def _builds(request: Request) -> bool:
    return _has_own_task(request) or "model" in request.objects


def _look_at_task(request: Request, before: Mapping[str, Any]) -> Looked:
    if _builds(request):
        imports.import_tensorflow()
        runtimes.configure_gpus(None, False)
        runtimes.configure_threads()
    try:
        task = assembly.load(request)
        data = fingerprint.of_task(task)
        model = task_models.keras_model(task, request.run) if _builds(request) else None
    except Exception as e:
        # The data may be elsewhere, and a user's code may raise anything. What else is known of
        # it is compared all the same.
        told = " ".join(str(e).split())
        if not isinstance(e, FedError):
            told = f"{type(e).__name__}: {told}"
        return Looked(of_task(request), None, told)
    return Looked(of_task(request, task, model, data, before), data, "")


def of_run(
    request: Request,
    task: Task,
    keras_model: Any,
    data: Mapping[str, str],
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the identity of a run that is about to start.

    Args:
      request: The settings.
      task: The task, loaded.
      keras_model: The model with its initial weights; `None` if it could not be built.
      data: Digests of the data.
      before: The recorded identity, if the run has begun.
    """
    own = _has_own_task(request) or "model" in request.objects
    model = keras_model if own else None
    return _joined(of_method(request), of_task(request, task, model, data, before))


def of_method(request: Request) -> dict[str, Any]:
    """Returns the method's part of the identity."""
    spec = tff_algos.get(request.run["algorithm"])
    return _of_spec("method", spec, {"builder": spec.builder, "plan": spec.plan})


def of_task(
    request: Request,
    task: Task | None = None,
    keras_model: Any = None,
    data: Mapping[str, str] | None = None,
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the task's part of the identity, as far as its parts are given."""
    found: dict[str, Any] = {}
    given = request.objects.get("task")
    if given is None:
        spec = tasks.get(request.run["task"])
        found = _of_spec("task", spec, {"loader": spec.loader})
    own_model = request.objects.get("model")
    describer = _describer(
        () if given is not None else [tasks.get(request.run["task"]).loader],
        filter(None, [request.run["data_dir"]]),
    )
    if keras_model is not None:
        describer.know("the model", keras_model)
    if task is not None and _has_own_task(request):
        describer.look("loss", task.loss)
        for name in sorted(task.metrics):
            describer.look(f"metric {name}", task.metrics[name])
        describer.tell("loss reduction", task.loss_reduction or "as the loss says")
        for part in ("train", "test", "validation"):
            _look_at_reading(describer, part, getattr(task, part))
        if own_model is None:
            made_by = task.keras_model_fn
            describer.look("model function", getattr(made_by, "__wrapped__", made_by))
    if own_model is not None and not model_identity.is_keras_model(own_model):
        describer.look("model function", own_model)
    if "client_lr_schedule" in request.objects:
        describer.look("client learning rate", request.objects["client_lr_schedule"])
    more: dict[str, Any] = {"code": describer.found.code, "values": describer.found.values}
    if model_identity.is_keras_model(keras_model):
        more["model"] = model_identity.of_model(keras_model, describer)
        known = (before or {}).get("model")
        if known and task is not None and _draws_anew(request, task, known, more["model"]):
            more["model"] |= {n: known[n] for n in model_identity.names_of_weights(more["model"])}
    if task is not None and data is not None:
        more["data"] = {"digest": fingerprint.whole(data), **_counts(task)}
    return _joined(found, more)


def _look_at_reading(describer: code_digests.Describer, part: str, data: Any) -> None:
    """Inspects how data make examples of what their digest covers, such as bytes of pixels."""
    transform = getattr(data, "transform", None)
    if transform is not None:
        describer.look(f"transform of {part}", transform)
    covers_examples = not (task_lib.files(data) or hasattr(data, "held_in_memory"))
    if data is not None and not covers_examples and describer.is_users(type(data)):
        describer.look(f"class of {part}", type(data))


def _draws_anew(
    request: Request, task: Task, before: Mapping[str, Any], now: Mapping[str, Any]
) -> bool:
    """Returns whether initial weights differ only because a model function ignores its seed.

    Such a function draws other weights at each call, so its weights cannot be compared: any draw is
    accepted.
    """
    weights = model_identity.names_of_weights(now)
    if before.keys() != now.keys() or all(
        model_identity.same_weights(before[n], now[n]) for n in weights
    ):
        return False
    if any(before[name] != now[name] for name in now if name not in weights):
        return False
    again = model_identity.of_model(task_models.keras_model(task, request.run), _describer(()))
    return any(not model_identity.same_weights(again[n], now[n]) for n in weights)


def of_own_functions(
    evaluators: Mapping[str, Callable], callbacks: Iterable[Any]
) -> dict[str, str]:
    """Returns digests of the code of a caller's evaluators and own callbacks.

    Args:
      evaluators: Name → function.
      callbacks: Functions, and objects whose classes are the user's or the suite's.

    Returns:
      `the evaluator norm`, `the callback Average` → digest. What they fill while a run goes on is
      left out: lists, dictionaries, models, and attributes of callbacks.
    """
    describer = _describer(())
    found = {f"the evaluator {name}": function for name, function in evaluators.items()}
    for callback in filter(describer.is_users, callbacks):
        code = callback if callable(callback) else type(callback)
        name = CALLBACK + getattr(code, "__name__", type(code).__name__)
        alike = sum(known.partition(" (")[0] == name for known in found)
        found[f"{name} ({alike + 1})" if alike else name] = code
    return {name: _digest_of_function(function) for name, function in found.items()}


def _digest_of_function(function: Any) -> str:
    describer = code_digests.Describer([_is_filled, model_identity.look_at_library_object])
    describer.look("function", function)
    found = describer.found
    return code_texts.digest(json.dumps([found.code, found.values], sort_keys=True))


def _is_filled(describer: code_digests.Describer, name: str, value: Any) -> bool:
    """Describes what a run may fill by its kind only; returns whether it is such an object."""
    containers = list | dict | set | collections.deque
    if not isinstance(value, containers) and not model_identity.is_keras_model(value):
        return False
    describer.tell(name, type(value).__name__)
    return True


def _joined(*identities: Mapping[str, Any]) -> dict[str, Any]:
    """Merges several partial identities."""
    joined: dict[str, Any] = {}
    for identity in identities:
        for name, part in identity.items():
            if name == "code":
                code = joined.setdefault("code", {})
                for module, parts in part.items():
                    code[module] = {**code.get(module, {}), **parts}
            elif name == "suite":
                suite = joined.setdefault("suite", {"files": {}, "edited": []})
                suite["files"] = {**suite["files"], **part["files"]}
                suite["edited"] = sorted({*suite["edited"], *part["edited"]})
            else:
                joined[name] = {**joined.get(name, {}), **part}
    return joined


def _describer(
    functions: Sequence[str | Callable], places: Iterable[str] = ()
) -> code_digests.Describer:
    # The package of a user's method or task is the user's own code, even if it is installed.
    packages = [_module_of(f).split(".")[0] for f in functions if not _is_suites(f)]
    return code_digests.Describer([model_identity.look_at_library_object], packages, places)


def _of_spec(kind: str, spec: Any, functions: Any) -> dict[str, Any]:
    """Returns the version of a method or task, and the code of its functions."""
    functions = {name: f for name, f in functions.items() if f is not None}
    describer = _describer([f for name, f in functions.items() if name != "plan"])
    roots = []
    for name, function in functions.items():
        module = _module_of(function)
        if _is_suites(function):
            roots.append(module)
        elif isinstance(function, str):
            describer.module(module)
        else:
            describer.look(f"{kind}'s {name}", function)
    files = code_digests.loaded_suite(roots)
    return {
        kind: {"version": spec.version},
        "suite": {"files": files, "edited": sorted(files.keys() & _edited())},
        "code": describer.found.code,
        "values": describer.found.values,
    }


def _module_of(function: str | Callable) -> str:
    while hasattr(function, "func"):
        function = function.func
    if isinstance(function, str):
        return function.split(":")[0]
    return getattr(function, "__module__", None) or type(function).__module__


def _is_suites(function: str | Callable) -> bool:
    return code_places.is_suites(*_place(_module_of(function)))


def _place(module):
    return module, getattr(sys.modules.get(module), "__file__", None)


def _has_own_task(request: Request) -> bool:
    if "task" in request.objects:
        return True
    spec = tasks.get(request.run["task"])
    return spec.own_code or not _is_suites(spec.loader)


def _edited() -> frozenset[str]:
    """Returns the suite's files that git reports as modified or untracked; none outside git."""
    # Cached for some seconds, since hundreds of runs may be compared in a row.
    return _edited_at(int(time.monotonic() / _SECONDS_OF_A_LOOK))


@functools.lru_cache(maxsize=1)
def _edited_at(moment: Any) -> frozenset[str]:
    del moment
    command = ["git", "-C", code_places.SUITE, "status", "--porcelain", "-z", "--no-renames"]
    command += ["--untracked-files=all", "--", "tff_algos", "tasks", "tff_suite"]
    try:
        result = subprocess.run(command, capture_output=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    lines = result.stdout.split(b"\0")
    return frozenset(os.fsdecode(line[3:]) for line in lines if line.endswith(b".py"))


def _counts(task: Task) -> dict[str, int]:
    found = {
        "training clients": len(task.train.client_ids),
        "training examples": int(np.sum(task.train.sizes)),
    }
    if task.test is not None:
        found["test clients"] = len(task.test.client_ids)
        found["test examples"] = int(np.sum(task.test.sizes))
    if task.central_test is not None:
        found["central test examples"] = len(task.central_test.y)
    return found


def differences(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    data_before: Mapping[str, str] | None = None,
    data_now: Mapping[str, str] | None = None,
    history: Mapping[str, Sequence[str]] | None = None,
) -> list[Change]:
    """Returns the differences between a recorded identity and the current one.

    Args:
      before: The recorded identity.
      now: The current identity; parts that it lacks are not compared.
      data_before: Digests of the data at the run's start, if known.
      data_now: Digests of the current data, if known.
      history: `method` and `task` → what changed with each version after the first, a line each.
    """
    changes = []
    for kind, compared in (
        ("method", _of_versions),
        ("task", _of_versions),
        ("model", _of_models),
        ("values", _of_values),
    ):
        if isinstance(before.get(kind), Mapping) and kind in now:
            texts = compared(before[kind], now[kind], kind, (history or {}).get(kind, ()))
            changes += [Change(kind, text) for text in texts]
    if isinstance(before.get("data"), Mapping) and "data" in now:
        told = _of_data(before["data"], now["data"], data_before, data_now)
        changes += [Change("data", told)] if told else []
    if isinstance(before.get("code"), Mapping) and "code" in now:
        # A changed constant is reported once, with its values.
        values = before.get("values", {}), now.get("values", {})
        told = {name for name in values[0].keys() & values[1] if values[0][name] != values[1][name]}
        texts = _of_code(before["code"], now["code"], told)
        changes += [Change("code", text) for text in texts]
    if isinstance(before.get("suite"), Mapping) and "suite" in now:
        changes += [Change("code", text) for text in _of_suite(before["suite"], now["suite"])]
    return changes


def _of_versions(before, now, kind, history):
    was, version = before.get("version"), now["version"]
    if was == version:
        return []
    lines = specs.changes(history, was, version)
    return [f"{kind}: version {was} → {version}" + (f" ({'; '.join(lines)})" if lines else "")]


def _of_models(before, now, kind, history):
    if before.get("layers") != now.get("layers"):
        return [f"model: layers {before.get('layers')} → {now.get('layers')}"]
    names = list(dict.fromkeys([*now, *before]))
    weights = [
        n
        for n in names
        if n in {*model_identity.names_of_weights(now), *model_identity.names_of_weights(before)}
    ]
    texts = _of_values(*({k: v for k, v in d.items() if k not in weights} for d in (before, now)))
    if texts:
        # A model with other settings has other initial weights anyway.
        return [f"model: {text}" for text in texts]
    changed = [
        n for n in weights if not model_identity.same_weights(before.get(n, ""), now.get(n, ""))
    ]
    if len(changed) > 1 and len(changed) == len(weights):
        return ["model: initial weights"]
    return [f"model: initial weights of {n.removesuffix(', initial weights')}" for n in changed]


def _of_values(before, now, kind="", history=()):
    """Describes each difference, with both values if they are readable."""
    texts = []
    for name in dict.fromkeys([*now, *before]):
        was, is_ = before.get(name), now.get(name)
        if was == is_:
            continue
        head, comma, rest = name.partition(", ")
        shown = f"{head}: {rest}" if comma and kind else name
        if was is None or is_ is None:
            texts.append(f"{shown} is {'new' if was is None else 'gone'}")
        elif "#" in f"{was}{is_}" and str(was).split("#")[0] == str(is_).split("#")[0]:
            texts.append(f"{shown} has other content")
        else:
            texts.append(f"{shown} {_read(was)} → {_read(is_)}")
    return texts


def _read(value: Any) -> str:
    return str(value).split(" #")[0]


def _of_data(before, now, data_before, data_now):
    if before.get("digest") == now["digest"]:
        return ""
    counts = [
        f"{before.get(name) or 0:,} → {number:,} {name}"
        for name, number in now.items()
        if name != "digest" and name in before and before[name] != number
    ]
    if counts:
        return f"data: {', '.join(counts)}"
    if data_before and data_now and fingerprint.whole(data_before) == before.get("digest"):
        names = fingerprint.differences(data_before, data_now)
        return f"data: {names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}"
    return "data: other content (which part differs is not known)"


def _of_code(before, now, told):
    gone = {m: p for m, p in before.items() if m not in now}
    new = {m: p for m, p in now.items() if m not in before}
    for module in list(gone):
        # The same content under another name: the file was renamed.
        same = next((m for m in new if new[m] == gone[module]), None)
        if same is not None:
            del gone[module], new[same]
    texts = []
    for module in now:
        if module in new:
            texts.append(f"code: {module} is new")
        elif module in before and now[module] != before[module]:
            parts = [*now[module], *(p for p in before[module] if p not in now[module])]
            for part in parts:
                was, is_ = before[module].get(part), now[module].get(part)
                if was != is_ and f"{module}, {part}" not in told:
                    ending = " is new" if was is None else " is gone" if is_ is None else ""
                    texts.append(f"code: {module}, {part}{ending}")
    return texts + [f"code: {module} is gone" for module in gone]


def _of_suite(before, now):
    """Describes differences in files of the suite that were modified, then or now."""
    was, is_ = before.get("files", {}), now["files"]
    edited = {*before.get("edited", ()), *now["edited"]}
    return [
        f"code: {path}"
        for path in dict.fromkeys([*is_, *was])
        if path in edited
        if was.get(path) != is_.get(path)
    ]


def digest(now: Mapping[str, Any]) -> str:
    """Returns a short digest of what `differences` compares, equal where it finds no difference.

    Initial weights count by their norm and sum to four digits, as other machines differ in the last
    bits.

    Args:
      now: What a run would be made of.
    """
    model = dict(now.get("model", {}))
    for name in model_identity.names_of_weights(model):
        *shapes, _, norm, total = model[name].split(" ")
        model[name] = f"{shapes} {float(norm):.3e} {float(total):.3e}"
    suite = now.get("suite", {"files": {}, "edited": ()})
    known = {name: now.get(name) for name in ("method", "task", "code", "values", "data")}
    known |= {"model": model, "suite": {path: suite["files"].get(path) for path in suite["edited"]}}
    text = json.dumps(known, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def in_words(changes: Sequence[Change]) -> str:
    """Returns differences as part of a sentence; if there are many, only the first ones."""
    texts = [change.text for change in changes]
    more = f"; and {len(texts) - _MOST_TOLD} more" if len(texts) > _MOST_TOLD else ""
    return "; ".join(texts[:_MOST_TOLD]) + more


def what(changes: Sequence[Change]) -> str:
    """Returns what differs, for an error message: `code`, `data` or both."""
    kinds = {change.kind for change in changes}
    return " and ".join(["code"] * bool(kinds - {"data"}) + ["data"] * ("data" in kinds))


def ways_on(changes: Sequence[Change], folder: str) -> str:
    """Returns a user's options on differences, as a sentence without a full stop."""
    kept = f"--fresh (which keeps this run as {os.path.basename(outputs.free_place(folder))})"
    if any(change.kind == "data" for change in changes):
        return f"restore the data, choose another --experiment_name, or start anew with {kept}"
    return (
        f"choose another --experiment_name, start anew with {kept}, or continue this run with "
        "--accept_code_changes"
    )


def history_of(request: Request) -> dict[str, Sequence[str]]:
    """Returns the version histories of a run's method and task."""
    found = {"method": tff_algos.get(request.run["algorithm"]).history}
    if request.run["task"] in tasks.names():
        found["task"] = tasks.get(request.run["task"]).history
    return found
