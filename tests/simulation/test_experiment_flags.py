import dataclasses
import re
import sys
import textwrap
import types

import pytest

import tasks
import tff_algos
from simulation import experiment_flags, other_names, run_hparams, run_parser, runtimes
from tff_suite import command_line
from tff_suite.hparams import MAX_INT, Hparam, HparamError

BASE = (
    "--task=synthetic",
    "--algorithm=fedadam",
    "--total_rounds=3",
    "--clients_per_round=2",
    "--client_batch_size=5",
    "--client_learning_rate=0.1",
    "--server_learning_rate=0.01",
)
INTEGERS = {
    flag: hparam for flag, (hparam, _) in run_parser.flag_owners().items() if hparam.type is int
}


def _of(algorithm):
    return tuple(f.replace("fedadam", algorithm) for f in BASE)


def parse(*arguments, base=BASE):
    return experiment_flags.parse([*base, *arguments])


def error(*arguments, base=BASE):
    with pytest.raises(HparamError) as e:
        parse(*arguments, base=base)
    assert "\n" not in str(e.value)
    return str(e.value)


def test_settings_go_where_they_belong():
    request = parse("--fedadam_beta1=0.5", "--synthetic_num_clients=7", "--client_optimizer=sgdm")
    assert request.run["total_rounds"] == 3
    assert request.run["experiment_name"] == "synthetic_fedadam"
    assert request.training == {
        "client_optimizer": "sgdm",
        "client_learning_rate": 0.1,
        "server_learning_rate": 0.01,
    }
    assert request.method == {"beta1": 0.5, "beta2": 0.99, "tau": 1e-3, "variant": "released"}
    assert request.task["num_clients"] == 7 and request.task["generator"] == "leaf"


def test_flags_are_those_of_the_methods_that_are_registered_now(monkeypatch):
    parse()
    fedavg = tff_algos.get("fedavg")
    for name in ("first", "second"):
        spec = dataclasses.replace(fedavg, name="own", hparams=(Hparam(name, 1, "", "test"),))
        monkeypatch.setitem(tff_algos.registry._SPECS, "own", spec)
        assert parse(f"--own_{name}=2", base=_of("own")).method == {name: 2}
    assert "Unknown flag --own_first" in error("--own_first=2", base=_of("own"))


def test_in_force_has_every_setting_that_matters_and_no_other():
    request = parse("--client_optimizer=sgdm", "--fedopt_variant=algorithm2")
    want = {h.name for h in run_hparams.RUN_HPARAMS} - run_hparams.ACTIONS
    want |= {"client_optimizer", "client_learning_rate", "server_learning_rate", "client_momentum"}
    want |= {"client_weighting", "client_lr_schedule", "client_lr_warmup_steps"}
    want |= {"client_optimizer_state", "aggregator"}
    want |= {"fedadam_beta1", "fedadam_beta2", "fedadam_tau", "fedopt_variant"}
    want |= {f"synthetic_{h.name}" for h in tasks.get("synthetic").hparams}
    assert set(request.in_force) == want
    assert request.in_force["fedopt_variant"] == "algorithm2"
    assert request.in_force["client_momentum"] == 0.9
    assert request.in_force["seed"] == 0


def test_defaults_that_depend_on_other_settings_are_in_force():
    task = [*(b for b in BASE if "--task" not in b), "--task=fashion_mnist"]
    assert parse(base=task).in_force["fashion_mnist_alpha"] == 0.1
    by_class = parse("--fashion_mnist_partition=class", base=task).in_force
    assert by_class["fashion_mnist_alpha"] is None and by_class["fashion_mnist_num_clients"] is None
    yogi = parse("--client_optimizer=yogi").in_force
    assert yogi["client_epsilon"] == 1e-3 and "client_momentum" not in yogi
    assert parse("--client_optimizer=adam").in_force["client_epsilon"] == 1e-7
    flat = " ".join(help_text("--task=fashion_mnist", "--algorithm=fedavg").split())
    assert "(default: 0.1 with partition=dirichlet, else not used; in [1e-05, 1e+12]; so" in flat
    assert "0.9 with client_optimizer=sgdm or nesterov, not used with" in flat


def test_method_gives_the_default_server_rate():
    base = [b for b in BASE if "server_learning" not in b and "algorithm" not in b]
    assert parse("--algorithm=fedavg", base=base).in_force["server_learning_rate"] == 1.0


def test_method_gives_the_default_client_rate_if_it_has_one():
    base = [b for b in BASE if "client_learning" not in b and "algorithm" not in b]
    method = "--algorithm=delta_sgd"
    assert parse(method, base=base).in_force["client_learning_rate"] == 0.2
    given = parse(method, "--client_learning_rate=0.3", base=base)
    assert given.in_force["client_learning_rate"] == 0.3
    assert "--client_learning_rate" in error("--algorithm=fedavg", base=base)


def test_all_missing_flags_are_listed_at_once():
    text = error(base=())
    for flag in ("task", "algorithm", "total_rounds", "clients_per_round", "client_batch_size"):
        assert f"--{flag}" in text
    assert "--client_learning_rate" in text and "--server_learning_rate" not in text
    text = error(base=("--task=synthetic", "--algorithm=fedadam"))
    assert "--server_learning_rate" in text and "--task" not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--task=synthetik"], ["Unknown task synthetik", "Did you mean synthetic?"]),
        (["--algorithm=fedadm"], ["Unknown algorithm fedadm", "Did you mean fedadam?"]),
        (["--client_learning_rte=3"], ["--client_learning_rte", "mean --client_learning_rate?"]),
        (["--lr=0.1"], ["mean --client_learning_rate or --server_learning_rate?"]),
        (["--batch_size=3"], ["Did you mean --client_batch_size?"]),
        (["--beta1=0.5"], ["Unknown flag --beta1. Did you mean --fedadam_beta1?"]),
        (["--fedyogi_tau=0.5"], ["belongs to algorithm fedyogi. Did you mean --fedadam_tau?"]),
        (["--hlep"], ["Did you mean --help?"]),
        (["--task=table", "--csv=x"], ["Unknown flag --csv. Did you mean --table_path?"]),
        (["--task=table", "--label=x"], ["Did you mean --table_target?"]),
        (["--task=table", "--dirichlet_alpha=1"], ["Did you mean --table_alpha?"]),
        (["--algorithm=fedda_adagrad", "--epsilon=1"], ["Did you mean --fedda_epsilon?"]),
        (["--fedavgm_momentum=0.5"], ["--fedavgm_momentum", "fedadam", "algorithm fedavgm"]),
        (["--fashion_mnist_partition=iid"], ["--fashion_mnist_partition", "task fashion_mnist"]),
        (["--data_dir=/x"], ["--data_dir", "--task=synthetic"]),
        (["--fedadam_beta1=1"], ["--fedadam_beta1=1.0", "in [0, 1)"]),
        (["--fedadam_beta1=abc"], ["--fedadam_beta1='abc'", "a number"]),
        (["--fedadam_beta1=nan"], ["--fedadam_beta1=nan", "finite"]),
        (["--total_rounds=0"], ["--total_rounds=0", ">= 1"]),
        (["--total_rounds=1.5"], ["--total_rounds='1.5'", "whole number"]),
        (["--max_minutes=0"], ["--max_minutes=0", "> 0"]),
        (["--num_validation_examples=0"], ["--num_validation_examples=0", ">= 1"]),
        (["--seed=-1"], ["--seed=-1"]),
        (["--seed=4294967296"], ["--seed=4294967296"]),
        (["--use_synthetic_data=7"], ["--use_synthetic_data='7'", "true or false"]),
        (["--runtime=gpu"], ["--runtime=gpu", "auto, per_client, vectorized, tff, native"]),
        (["--client_momentum=0.5"], ["client_momentum", "client_optimizer=sgd"]),
        (["--client_lr_decay_rate=0.5"], ["client_lr_decay_rate", "constant"]),
        (["--flagfile=/no/such/file"], ["--flagfile", "/no/such/file"]),
        (["--import=no_such_module"], ["--import=no_such_module", "ModuleNotFoundError"]),
        (["--experiment_name"], ["experiment_name"]),
        (["--root_output_dir=s3://bucket/x"], ["s3://bucket/x is an address", "--storage"]),
        (["stray"], ["'stray'", "--name=value"]),
        (["--flagfile=/"], ["--flagfile=/", "Is a directory"]),
        (["--flagfile=/dev/zero"], ["--flagfile=/dev/zero", "longer than"]),
        (["--flagfile"], ["--flagfile needs a file"]),
        (["--nouse_synthetic_data=3"], ["--nouse_synthetic_data=3"]),
        (["--experiment_name=a\0b"], ["--experiment_name", "zero byte"]),
        (["--experiment_name=\udcff"], ["--experiment_name", "UTF-8"]),
        (["--seed=" + "9" * 5000], ["--seed='999", "..."]),
    ],
)
def test_wrong_flags_are_one_clear_line(arguments, words):
    text = error(*arguments)
    for word in words:
        assert word in text


def test_a_method_that_takes_everyone_draws_no_clients():
    base = [b for b in BASE if not any(w in b for w in ("algorithm", "clients_per", "server_l"))]
    base = [*base, "--algorithm=centralized"]
    assert parse(base=base).run["clients_per_round"] is None
    assert "--clients_per_round is not used by" in error("--clients_per_round=2", base=base)
    assert "whose server takes no step" in error("--server_learning_rate=0.5", base=base)
    assert "clients_per_round" not in error(base=("--task=synthetic", "--algorithm=centralized"))


def test_the_most_rounds_take_no_longer_to_check_than_one():
    base = [b for b in BASE if not any(w in b for w in ("rounds", "clients_per", "server_l"))]
    for name in tff_algos.names():
        own = [b for b in base if "algorithm" not in b] + [f"--algorithm={name}"]
        if tff_algos.get(name).draws_clients:
            own.append("--clients_per_round=2")
        if tff_algos.get(name).server_learning_rate is None:
            own.append("--server_learning_rate=0.1")
        assert parse(f"--total_rounds={MAX_INT}", base=own).run["total_rounds"] == MAX_INT


def test_a_tilde_is_the_home_that_the_shell_left_it_to_be(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    base = [*(b for b in BASE if "--task" not in b), "--task=femnist"]
    request = parse("--root_output_dir=~/runs", "--data_dir=~", base=base)
    assert (request.run["root_output_dir"], request.run["data_dir"]) == (
        "/home/me/runs",
        "/home/me",
    )
    assert request.in_force["root_output_dir"] == "/home/me/runs"
    request = parse("--data_dir=s3://bucket/~", base=base)
    assert (request.run["root_output_dir"], request.run["data_dir"]) == ("results", "s3://bucket/~")


@pytest.mark.parametrize("task", [n for n in tasks.names() if tasks.get(n).clients])
def test_more_clients_than_the_task_has_are_refused_before_its_data_are_read(task):
    base = [*(b for b in BASE if "--task" not in b), f"--task={task}"]
    spec = tasks.get(task)
    for synthetic in (False, True):
        known = spec.clients(spec.resolve({}), synthetic)
        if known is None:
            continue
        given = ["--use_synthetic_data"] if synthetic else []
        assert parse(*given, f"--clients_per_round={known.number}", base=base)
        text = error(*given, f"--clients_per_round={known.number + 1}", base=base)
        assert f"more than the {known.number} clients of --task={task}" in text
        if known.ids is not None:
            assert parse(*given, f"--track_clients={known.ids[0]}", base=base)
            assert "there is no client 'nobody'" in error(
                *given, "--track_clients=nobody", base=base
            )


def test_unused_flag_of_several_owners_names_them_all():
    base = [b for b in BASE if "algorithm" not in b]
    text = error("--algorithm=fedavg", "--fedopt_variant=released", base=base)
    assert "--fedopt_variant" in text and "fedadagrad, fedadam, fedyogi" in text


def test_forms_that_absl_users_know():
    request = experiment_flags.parse(
        ["--task", "synthetic", "-algorithm=fedadam", *BASE[2:], "--use_synthetic_data", "--seed=3"]
    )
    assert request.run["use_synthetic_data"] is True and request.run["seed"] == 3
    assert parse("--nouse_synthetic_data").run["use_synthetic_data"] is False
    assert parse("--use_synthetic_data=true").run["use_synthetic_data"] is True
    assert parse("--seed=1", "--seed=2").run["seed"] == 2


def test_flagfile(tmp_path):
    file = tmp_path / "x.flags"
    file.write_text("# The paper's.\n--task=synthetic\n--algorithm=fedadam\n--fedadam_tau=0.5\n")
    request = experiment_flags.parse([f"--flagfile={file}", *BASE[2:], "--fedadam_beta2=0.9"])
    assert request.method["tau"] == 0.5 and request.method["beta2"] == 0.9
    later = experiment_flags.parse([f"--flagfile={file}", *BASE[2:], "--fedadam_tau=0.25"])
    assert later.method["tau"] == 0.25


def test_a_flag_file_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "a.flags").write_text("--task=synthetic\n", encoding="utf-8-sig")
    assert parse(f"--flagfile={tmp_path}/a.flags").run["task"] == "synthetic"


def help_text(*arguments, full=True):
    with pytest.raises(command_line.Answered) as e:
        experiment_flags.parse([*arguments, "--helpfull" if full else "--help"])
    return str(e.value)


def test_help_lists_common_flags_methods_and_tasks_only():
    text = help_text()
    for name in (*tff_algos.names(), *tasks.names()):
        assert f"\n  {name} " in text
    assert "--client_learning_rate=" in text and "--rounds_per_eval=" in text
    assert "--fedadam_" not in text and "--synthetic_" not in text


def test_help_of_a_method_and_task_shows_what_applies_with_default_range_and_source():
    text = help_text("--algorithm=fedadam", "--task=synthetic")
    assert "--fedadam_beta1=<float>" in text and "--fedopt_variant" in text
    assert "--synthetic_generator" in text
    assert "--fedavgm_momentum" not in text and "--fashion_mnist" not in text
    assert "--data_dir" not in text
    flat = " ".join(text.split())
    assert "(default: 0.9; in [0, 1); source: Adaptive Federated Optimization, section 4" in flat


def test_short_help_shows_the_most_used_flags_and_those_of_the_method():
    text = help_text("--algorithm=fedadam", full=False)
    assert "--total_rounds=" in text and "--fedadam_beta1=" in text
    assert "--worker_timeout" not in text and "--worker_timeout" in help_text()
    flags = run_parser.flag_owners()
    common = {h.name for h in run_hparams.RUN_HPARAMS if h.common}
    assert common.union(run_parser._COMMON_OF_TRAINING) < set(flags)


def test_other_names_lead_to_flags_that_are_there():
    flags = run_parser.flag_owners()
    for name, ours in other_names._COMMON.items():
        assert name not in flags and set(ours) <= set(flags), name


def test_help_of_an_unknown_method_is_an_error():
    assert "Unknown algorithm x" in error("--algorithm=x", "--help", base=())


@pytest.mark.parametrize("module", [tff_algos, tasks])
def test_every_setting_of_every_owner_can_be_given_and_is_described(module):
    kind = "algorithm" if module is tff_algos else "task"
    for name in module.names():
        text = help_text(f"--{kind}={name}")
        for hparam in module.get(name).hparams:
            assert f"--{hparam.flag_name(name)}=" in text
            assert hparam.help and hparam.source


def test_a_flag_is_named_by_its_owner_and_its_setting():
    """Methods of one file may share a flag, which is then named by the file."""
    wrong = []
    for module in (tff_algos, tasks):
        for name in module.names():
            spec = module.get(name)
            maker = getattr(spec, "builder", None) or spec.loader
            if callable(maker):  # Of a package outside the suite, such as examples/.
                continue
            file = maker.partition(":")[0].rpartition(".")[2]
            for hparam in spec.hparams:
                allowed = {f"{name}_{hparam.name.removesuffix('_')}"}
                if hparam.flag is not None:
                    allowed = {f"{file}_{hparam.name}"}
                if hparam.flag_name(name) not in allowed:
                    wrong.append(f"--{hparam.flag_name(name)} sets {hparam.name} of {name}")
    for hparam in (*run_hparams.RUN_HPARAMS, *tff_algos.TRAINING_HPARAMS):
        if hparam.flag != hparam.name:
            wrong.append(f"--{hparam.flag} sets {hparam.name}")
    assert not wrong


def test_runtimes_are_those_there_are():
    declared = next(h for h in run_hparams.RUN_HPARAMS if h.name == "runtime")
    assert tuple(declared.choices) == ("auto", *runtimes.RUNTIMES)


@pytest.fixture
def own_registries(monkeypatch):
    """Lets a test register what later tests must not see."""
    for registry in (tff_algos.registry, tasks.registry):
        monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))


def extension(monkeypatch, spec):
    module = types.ModuleType("my_extension")
    tff_algos.register(spec)
    monkeypatch.setitem(sys.modules, "my_extension", module)


def test_imported_method_has_flags_like_our_own(own_registries, monkeypatch):
    mine = dataclasses.replace(
        tff_algos.get("fedavg"), name="mine", hparams=[Hparam("power", 2.0, "Power.", "choice")]
    )
    extension(monkeypatch, mine)
    base = [b for b in BASE if "algorithm" not in b]
    request = parse("--import=my_extension", "--algorithm=mine", "--mine_power=3", base=base)
    assert request.method == {"power": 3.0}
    assert request.in_force["import"] == "my_extension"


@pytest.mark.parametrize("flag", list(INTEGERS))
def test_every_whole_number_has_a_bound(flag):
    """So that no number exhausts memory, or overflows where it becomes a 32-bit one."""
    hparam = INTEGERS[flag]
    for number in (2**32, 10**12, -(10**12), 10**30):
        with pytest.raises(HparamError, match=f"--{flag}={number} must be "):
            hparam.check(number, f"--{flag}")
    largest = int(hparam.maximum or MAX_INT)
    assert hparam.check(largest) == largest < 2**32


def test_a_whole_number_that_is_no_number_with_a_point_is_refused():
    """Python's own have no bound; on a command line it would be infinite."""
    with pytest.raises(HparamError, match=r"^--x must be a smaller number.$"):
        Hparam("x", 0.5, "Help.", "choice").check(10**400, "--x")


def test_flags_declared_differently_are_refused(own_registries, monkeypatch):
    clash = Hparam("tau", 0.5, "Other.", "choice", flag="fedadam_tau")
    extension(
        monkeypatch, dataclasses.replace(tff_algos.get("fedavg"), name="mine", hparams=[clash])
    )
    assert "--fedadam_tau is declared differently" in error()


def test_broken_import_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "broken_extension.py").write_text("raise RuntimeError('two\\nlines')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    text = error("--import=broken_extension")
    assert text == "--import=broken_extension failed: RuntimeError: two lines"


@pytest.mark.parametrize("ends", ["sys.exit()", "sys.exit(0)", "raise BaseException", "1 / 0"])
def test_however_an_imported_module_ends_it_is_one_line(tmp_path, monkeypatch, ends):
    (tmp_path / "ending_extension.py").write_text(f"import sys\n{ends}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert error("--import=ending_extension").startswith("--import=ending_extension failed: ")


def test_an_interrupted_import_is_an_interruption(tmp_path, monkeypatch):
    (tmp_path / "interrupted_extension.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        parse("--import=interrupted_extension")


def test_flag_files_within_each_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outer, inner = tmp_path / "outer.flags", tmp_path / "inner.flags"
    inner.write_text("# Of the run.\n\n  --total_rounds=7  \n// The end.")
    outer.write_text("--flagfile=inner.flags\n--seed=5\n")
    for given in (["--flagfile=outer.flags"], ["-flagfile", "outer.flags"]):
        request = parse(*given, "--seed=6")
        assert (request.run["total_rounds"], request.run["seed"]) == (7, 6)
    inner.write_text(f"--flagfile={outer}")
    assert error("--flagfile=outer.flags") == f"--flagfile={outer} includes itself."
    inner.write_bytes(b"--experiment_name=\xff")
    assert f"--flagfile={inner} cannot be read: 'utf-8'" in error("--flagfile=outer.flags")


def test_flag_files_of_the_suite_are_found_from_any_folder(tmp_path, monkeypatch):
    """And include each other, even where the folder has files of the same names."""
    path = "papers/fedda/flags/cifar100_climb.flags"
    want = experiment_flags.parse([f"--flagfile={path}"])
    monkeypatch.chdir(tmp_path)
    assert experiment_flags.parse([f"--flagfile={path}"]) == want
    (tmp_path / "papers/fedda/flags").mkdir(parents=True)
    (tmp_path / "papers/fedda/flags/cifar100.flags").write_text("--seed=77")
    assert experiment_flags.parse([f"--flagfile={path}"]) == want


def test_epochs_that_nothing_would_read_are_refused():
    drawn = "--client_epochs_distribution=uniform_1_3"
    assert parse(drawn).run["client_epochs_distribution"] == "uniform_1_3"
    with pytest.raises(HparamError, match="--client_epochs_per_round is not used with"):
        parse(drawn, "--client_epochs_per_round=2")
    for flag in (drawn, "--client_epochs_per_round=2"):
        with pytest.raises(HparamError, match="is not used by --algorithm=fedda_sgdm"):
            parse(flag, base=_of("fedda_sgdm"))


def test_a_client_optimizer_without_state_cannot_be_kept():
    keep = "--client_optimizer_state=keep"
    assert parse(keep, "--client_optimizer=sgdm").training["client_optimizer_state"] == "keep"
    with pytest.raises(HparamError, match="client_optimizer=sgd, which has no state"):
        parse(keep)
    with pytest.raises(HparamError, match="client_optimizer=sgdm, which has no state"):
        parse(keep, "--client_optimizer=sgdm", "--client_momentum=0")
    with pytest.raises(HparamError, match="not supported by fedfa"):
        parse(keep, base=_of("fedfa"))


def test_in_python_the_folder_is_named_by_what_differs():
    def name(**changes):
        given = dict(flag.removeprefix("--").split("=") for flag in BASE)
        numbers = {k: float(v) if "." in v else int(v) for k, v in given.items() if v[0].isdigit()}
        return experiment_flags.from_python({**given, **numbers, **changes}).run["experiment_name"]

    assert re.fullmatch("synthetic_fedadam_seed0_[0-9a-f]{8}", name())
    # Neither a default that is given, nor what a resumed run may change, makes another run.
    assert name(fedadam_beta1=0.9, seed=0, client_momentum=None) == name()
    assert name(root_output_dir="elsewhere", total_rounds=9, max_minutes=1.0) == name()
    others = [{"seed": 3}, {"client_learning_rate": 0.2}, {"fedadam_beta1": 0.8}]
    names = {name(**change) for change in [{}, *others]}
    assert len(names) == 4
    assert name(experiment_name="mine") == "mine"


def test_help_of_a_runs_flags_is_at_most_two_lines():
    for hparam in run_hparams.RUN_HPARAMS:
        assert len(textwrap.wrap(hparam.help, 90)) <= 2, hparam.name
