"""Local stand-ins for what Bazel 4 would download before it looks at the first Python target."""

def _written_repository_impl(repository):
    for path, text in repository.attr.files.items():
        repository.file(path, text)

_written_repository = repository_rule(
    implementation = _written_repository_impl,
    attrs = {"files": attr.string_dict()},
)

def _native_rules(name, package, rules):
    """A repository whose rules are the ones built into Bazel, as the real repository's are in Bazel 4."""
    define = "def {rule}(**kwargs):\n    native.{rule}(**kwargs)\n"
    _written_repository(
        name = name,
        files = {
            package + "/BUILD": "",
            package + "/defs.bzl": "\n".join([define.format(rule = rule) for rule in rules]),
        },
    )

def offline_repositories():
    """Declares the repositories that Bazel's own toolchains load; no target here needs C++, Java or coverage."""
    _native_rules(
        name = "rules_cc",
        package = "cc",
        rules = ["cc_binary", "cc_library", "cc_test", "cc_toolchain", "cc_toolchain_suite"],
    )
    _native_rules(
        name = "rules_java",
        package = "java",
        rules = ["java_binary", "java_import", "java_library", "java_runtime", "java_toolchain"],
    )
    _written_repository(
        name = "remote_coverage_tools",
        files = {"BUILD": """
[filegroup(
    name = tool,
    srcs = ["BUILD"],
    visibility = ["//visibility:public"],
) for tool in ("coverage_report_generator", "lcov_merger")]
"""},
    )
