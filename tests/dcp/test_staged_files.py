"""How tensors come to the coordinator of a consolidation: only out of memory that is proven to be that of their rank."""

import os
import pickle

import ckptd
import pytest
import torch
from ckptd._torch.writing.safetensors_file import Piece, lay_out
from ckptd.dcp._hugging_face import staged_files

WRITER = "ckptd.dcp.HuggingFaceWriter({!r}, save_distributed=True, enable_consolidation=True)"


@pytest.fixture
def image():
    tensor = torch.arange(100.0)
    return lay_out([Piece("a", tensor.dtype, (100,), (0,), [tensor])], sharded=False)[0].image()


def test_staged_file_is_attached_and_freed(image):
    staged = staged_files.StagedFile(1, image, 1)
    attached = staged_files.AttachedFile(staged.ref)
    assert torch.equal(attached.bytes[-400:].view(torch.float32), torch.arange(100.0))
    attached.free()
    assert os.fstat(staged.ref.descriptor).st_size == 0


@pytest.mark.parametrize("other", ["file", "memory of another save", "longer memory", "pipe", "no descriptor", "no process"])
def test_what_is_not_proven_to_be_the_ranks_memory_is_neither_read_nor_truncated(image, tmp_path, other):
    staged = staged_files.StagedFile(1, image, 1)
    opened = []
    if other == "file":
        (tmp_path / "precious").write_bytes(b"x" * 1000)
        opened = [os.open(tmp_path / "precious", os.O_RDWR)]
    elif other == "memory of another save":
        another = staged_files.StagedFile(1, image, 1)
        opened = [os.dup(another.ref.descriptor)]
    elif other == "longer memory":
        another = staged_files.StagedFile(1, image, 1)
        os.pwrite(another.ref.descriptor, staged.ref.token + b"more", staged.ref.size)
        opened = [os.dup(another.ref.descriptor)]
    elif other == "pipe":
        opened = list(os.pipe())
    wrong = staged.ref._replace(descriptor=opened[0] if opened else 987654)
    if other == "no process":
        wrong = staged.ref._replace(process=2**22 + 1)
    sizes = [os.fstat(each).st_size for each in opened]
    with pytest.raises(ckptd.Refused, match="the tensors of rank 1 cannot be read from /proc/.*save without enable_consolidation"):
        staged_files.AttachedFile(wrong)
    assert [os.fstat(each).st_size for each in opened] == sizes
    for each in opened:
        os.close(each)


def test_inline_file_survives_pickling(image):
    sent = pickle.loads(pickle.dumps(staged_files.InlineFile(image, 1)))
    assert torch.equal(sent.bytes[-400:].view(torch.float32), torch.arange(100.0))


@pytest.mark.parametrize("elsewhere", [[0], [1], [2], [1, 2]])
def test_ranks_on_other_machines_or_in_other_namespaces_send_their_tensors(launch, root, elsewhere):
    ranks = launch(3)
    ranks.do(
        "from ckptd.dcp._hugging_face import staged_files; place = staged_files.place\n"
        f"if dist.get_rank() in {elsewhere}: staged_files.place = lambda: f'elsewhere {{dist.get_rank()}}'\n"
        "state = states.sharded_state(1)['model']\n"
        # Its memory would be that of another process there.
        "before = staged_files.StagedFile.__init__; staged = []\n"
        "def noting(self, *args): before(self, *args); staged.append(dist.get_rank())\n"
        "staged_files.StagedFile.__init__ = noting\n"
        f"try: dcp.save(state, storage_writer={WRITER.format(root + '/a')})\n"
        "finally: staged_files.place = place; staged_files.StagedFile.__init__ = before"
    )
    assert ranks.do("staged") == [[], [] if {0, 1} & set(elsewhere) else [1], [] if {0, 2} & set(elsewhere) else [2]]
    ranks.do(f"into = states.emptied(state); dcp.load(into, storage_reader=dcp.HuggingFaceStorageReader({root + '/a'!r}))")
    assert ranks.do("states.differences(state, into)") == [[]] * 3
