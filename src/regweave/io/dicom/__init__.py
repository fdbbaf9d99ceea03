"""DICOM objects: image series, structure sets, registrations and doses."""
