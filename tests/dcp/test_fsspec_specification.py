"""fsspec's specification of file systems, `fsspec.tests.abstract`, run against `ckptd://`: the part that reads.

A checkpoint appears whole, so the trees that the specification makes file by file are saved as one checkpoint here. Its tests that
put, copy or pipe single files into a file system, and read them back, are not run: see test_fsspec.py for what writing means.
"""

import os
import tempfile

import fsspec.tests.abstract as specification
import pytest
from fsspec.implementations.local import LocalFileSystem

import ckptd
import ckptd.dcp
from ckptd.dcp._fsspec import CkptdFileSystem


class Fixtures(specification.AbstractFixtures):
    @pytest.fixture
    def fs(self, daemon):
        ckptd.dcp.configure(daemon.endpoint)
        self.endpoint = daemon.endpoint
        yield CkptdFileSystem()
        ckptd.dcp.configure()

    @pytest.fixture
    def fs_path(self, root):
        return root

    def _saved(self, make, fs, path):
        """Returns the checkpoint of the files that a method of the specification makes."""
        if not isinstance(fs, CkptdFileSystem):
            return make(fs, os.path.join, path)
        with tempfile.TemporaryDirectory() as folder:
            made = make(LocalFileSystem(auto_mkdir=True), os.path.join, folder)
            paths = [os.path.join(place, name) for place, _, names in os.walk(made) for name in names]
            files = {os.path.relpath(each, made): ckptd.File(each) for each in paths}
            tag = os.path.basename(made)
            ckptd.connect(self.endpoint).run(path, rank=0, world_size=1).save(tag, files=files).wait("committed", 60)
        return os.path.join(path, tag)

    def _bulk_operations_scenario_0(self, fs, join, path):
        return self._saved(super()._bulk_operations_scenario_0, fs, path)

    def _glob_edge_cases_files(self, fs, join, path):
        return self._saved(super()._glob_edge_cases_files, fs, path)

    def _dir_and_file_with_same_name_prefix(self, fs, join, path):
        return self._saved(super()._dir_and_file_with_same_name_prefix, fs, path)

    def _10_files_with_hashed_names(self, fs, join, path):
        return self._saved(super()._10_files_with_hashed_names, fs, path)


class TestGet(specification.AbstractGetTests, Fixtures):
    test_get_directory_recursive = None  # It writes single files. What it reads is in the other tests.
