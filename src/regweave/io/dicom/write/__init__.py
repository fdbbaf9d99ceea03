"""Writers of new DICOM objects."""
