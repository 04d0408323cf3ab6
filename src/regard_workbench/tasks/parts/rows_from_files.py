"""The base of tasks that learn from rows of files: which are for what, and each of them encoded once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from regard.errors import BadValue
from regard.support.declared import option
from regard_workbench.tasks.formats.reading import Data
from regard_workbench.tasks.formats.splits import checked_split, divided
from regard_workbench.tasks.parts.shared_options import ENCODING, SEED, WHOLE
from regard_workbench.tasks.parts.task import SPLITS, Task


class RowsFromFiles(Task):
    """A subclass defines `read` and `encoded`; `data`, `encoding`, `seed` and `whole` are its options already."""

    kept_in = "file"  # what `data` has for a split, in words

    data: Data | None = option("files to learn from, or a folder with files for the splits", default=None)
    encoding: str = ENCODING
    seed: int = SEED
    whole: bool = WHOLE

    def read(self) -> Mapping[str, Sequence[Any]]:
        """The rows of each split that has files; generated ones where `data` is None."""
        raise NotImplementedError(f"{type(self).__name__} does not define read")

    def encoded(self, rows: Sequence[Any], *, training: bool) -> Sequence[Any]:
        """The examples that rows become; `training` where they are those of the training split."""
        raise NotImplementedError(f"{type(self).__name__} does not define encoded")

    def key(self, row: Any) -> str:
        """The text by which rows are divided: rows of one key come into one split."""
        return str(row.text)

    @cached_property
    def rows(self) -> Mapping[str, Sequence[Any]]:
        """The rows of each split; those without files are taken from the training rows."""
        splits = self.read()
        if set(SPLITS) <= set(splits):  # generated ones may be too many for lists
            return splits
        lists = {split: list(rows) for split, rows in splits.items()}
        return divided(lists, self.key, self.seed, self.data, self.whole)

    @property
    def training_rows(self) -> Sequence[Any]:
        """What `fit` learns from: the training rows, or those of the first split where there are none."""
        return self.rows_of("train" if "train" in self.rows else next(iter(self.rows)))

    def rows_of(self, split: str) -> Sequence[Any]:
        """The rows of a split; raises where no file is for it."""
        if checked_split(split) not in self.rows:
            raise BadValue(f"data: {self.data} has no {self.kept_in} for {split}. It has: {', '.join(self.rows)}.")
        return self.rows[split]

    def examples(self, split: str) -> Sequence[Any]:
        """The rows of a split in the order of the files, encoded once."""
        _ = self.fitted  # what is wrong with the training data is said first
        if split not in self._by_split:
            self._by_split[split] = self.encoded(self.rows_of(split), training=split == "train")
        examples: Sequence[Any] = self._by_split[split]
        return examples
