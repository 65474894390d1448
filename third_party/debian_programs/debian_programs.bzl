"""@debian_programs: programs from Debian's packages that tests run, unpacked and not installed.

Installed, such a package would add a user and run its server from the next start of the machine on. Each package is a
folder of the repository with what is in it: @debian_programs//:etcd-server/usr/bin/etcd. apt checks signatures.
"""

def _debian_programs_impl(rctx):
    result = rctx.execute(["/bin/bash", rctx.path(rctx.attr._download)] + rctx.attr.packages, timeout = 300)
    if result.return_code != 0:
        fail("No Debian packages; apt's sources must be reachable.\n" + result.stderr)
    rctx.file("BUILD.bazel", 'exports_files(glob(["*/usr/bin/*"]), visibility = ["//visibility:public"])\n')

debian_programs = repository_rule(
    implementation = _debian_programs_impl,
    attrs = {
        "packages": attr.string_list(mandatory = True),
        "_download": attr.label(default = "//third_party/debian_programs:download.sh"),
    },
)
