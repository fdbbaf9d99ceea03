"""Pages that show a result: self-contained HTML made from the JSON and images of an output folder."""
