"""Many registrations: worker processes, clusters, resumable stores, one score for each pair."""
