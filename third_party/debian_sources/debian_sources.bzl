"""@debian_sources: libraries that Debian ships as shared objects only, built here from Debian's source packages.

The programs that we release are static, so that one file runs on any node, and these libraries have no .a file.
Each package is a folder of the repository, with the file PACKAGE.BUILD from beside this one. apt checks signatures.
"""

def _debian_sources_impl(rctx):
    result = rctx.execute(["/bin/bash", rctx.path(rctx.attr._download)] + rctx.attr.packages, timeout = 300)
    if result.return_code != 0:
        fail("No Debian source packages; apt's sources must be reachable and have deb-src too.\n" + result.stderr)
    for package in rctx.attr.packages:
        rctx.symlink(Label("//third_party/debian_sources:%s.BUILD" % package), package + "/BUILD.bazel")

debian_sources = repository_rule(
    implementation = _debian_sources_impl,
    attrs = {
        "packages": attr.string_list(mandatory = True),
        "_download": attr.label(default = "//third_party/debian_sources:download.sh"),
    },
)
