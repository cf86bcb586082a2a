"""Trees of tensors and plain values, and directories that keep them: written in one switch, checked when read."""

from torchrb.persistence.folder import Dump as Dump
from torchrb.persistence.folder import FileEntry as FileEntry
from torchrb.persistence.folder import opened as opened
from torchrb.persistence.folder import saved as saved
from torchrb.persistence.plain import copied as copied
from torchrb.persistence.plain import plain as plain
from torchrb.persistence.plain import restored as restored
from torchrb.persistence.reading import StateReader as StateReader
