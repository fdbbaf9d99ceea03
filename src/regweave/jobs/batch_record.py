"""Schema of ``results.json`` in the folder of a batch of registrations."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from regweave.io.disk.records import Known, RecordPart, SafeName, SafePath, Text

FORMAT: Literal["regweave-batch"] = "regweave-batch"
Status = Literal["ok", "failed", "pending"]


class Because(RecordPart):
    """A broken rule: what was found, and what is allowed."""

    rule: Text
    level: Literal["look", "fail"]
    text: Text


class BatchRow(RecordPart):
    """Outcome of one pair of a batch.

    Parameters
    ----------
    id : str
        Name of the pair in the list.
    status : "ok", "failed" or "pending"
        ``failed`` ended with an error, ``pending`` has not been run yet.
    code, message : str, optional
        The error of a failure, such as ``E101`` and its text.
    folder : str, optional
        Where the result lies, relative to the folder of the batch.
    verdict : "pass", "look" or "fail", optional
        Word of the verdict, with ``reasons`` for anything but a pass.
    mean_dice_before, mean_dice_after : float, optional
        Mean over the structures that count, where both images have labels.
    folding_percent, seconds : float, optional
        Percentage of folded voxels, and time of the registration.
    thumbnail : str, optional
        PNG picture, relative to the folder of the batch.
    """

    id: SafeName
    status: Status
    code: Text | None = None
    message: Text | None = None
    folder: SafePath | None = None
    verdict: Literal["pass", "look", "fail"] | None = None
    reasons: list[Because] = Field(default_factory=list)
    mean_dice_before: Known = None
    mean_dice_after: Known = None
    folding_percent: Known = None
    seconds: Known = None
    thumbnail: SafePath | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.status == "ok" and (self.folder is None or self.verdict is None):
            raise ValueError(f"{self.id} is ok, but has no folder or no verdict")
        if self.status == "failed" and self.message is None:
            raise ValueError(f"{self.id} has failed, but there is no message")
        return self


class BatchRecord(RecordPart):
    """``results.json`` of a batch: one row for each pair, in the order of the list; ``rules`` names the criteria."""

    format: Literal["regweave-batch"] = FORMAT
    rules: Text
    rows: list[BatchRow]

    @model_validator(mode="after")
    def _once(self) -> Self:
        if len({row.id for row in self.rows}) < len(self.rows):
            raise ValueError("a pair stands twice")
        return self
