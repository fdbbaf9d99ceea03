"""Contours in few steps, for tests that do not measure accuracy."""

import pytest

from regweave.clinic import propagate


@pytest.fixture(scope="module")
def few_steps():
    real = propagate.intra_patient_settings

    def few(*arguments, **options):
        found = real(*arguments, **options)
        refine = found.refine.model_copy(update={"steps": 4})
        return found.model_copy(update={"levels": found.levels[:1], "refine": refine})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(propagate, "intra_patient_settings", few)
        yield
